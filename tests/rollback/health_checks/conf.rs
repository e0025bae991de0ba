//! `/etc/copal/rollback.conf`, and the arguments of `rollback-health`.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::time::Duration;

use copal::config::paths::Paths;
use copal::config::rollback_conf::{FILE, NUMBERS, RollbackConf};
use copal::error::{Code, Error};

use crate::kit::log::logged;
use crate::kit::process::Root;

fn with(text: &str) -> (Root, Paths) {
    let root = Root::new();
    std::fs::create_dir_all(root.at("/etc/copal")).unwrap();
    std::fs::write(root.at(FILE), text).unwrap();
    let paths = Paths::new(root.path());
    (root, paths)
}

/// The first mistake in the file, or the configuration.
fn strict(paths: &Paths, args: &[OsString]) -> Result<RollbackConf, Error> {
    let (conf, mistakes) = RollbackConf::read(paths, args);
    mistakes.into_iter().next().map_or(Ok(conf), Err)
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[test]
fn without_a_file_the_scripts_values_hold() {
    let root = Root::new();
    let conf = strict(&Paths::new(root.path()), &[]).unwrap();
    let expected = RollbackConf {
        timeout: Duration::from_secs(60),
        count: 15,
        altboot_timeout: Duration::from_secs(900),
        check_limit: Duration::from_secs(300),
        units_required: false,
        device_tree_required: true,
    };
    assert_eq!(conf, expected);
    assert_eq!(conf, RollbackConf::default());
    let (conf, log) = logged(|| RollbackConf::on_trial(&Paths::new(root.path()), &[]));
    assert_eq!((conf, log), (expected, Vec::new()));
}

#[test]
fn every_key_has_its_value() {
    let text = "# for slow boards\nTIMEOUT=120\nexport COUNT='30'\nALTBOOT_TIMEOUT=\"1800\"\nCHECK_LIMIT=\nREQUIRE_UNITS=1\nREQUIRE_DEVICE_TREE=0\n";
    let (_root, paths) = with(text);
    let conf = strict(&paths, &[]).unwrap();
    let expected = RollbackConf {
        timeout: Duration::from_secs(120),
        count: 30,
        altboot_timeout: Duration::from_secs(1800),
        check_limit: Duration::from_secs(300),
        units_required: true,
        device_tree_required: false,
    };
    assert_eq!(conf, expected);
    assert_eq!(RollbackConf::on_trial(&paths, &[]), expected);
}

#[test]
fn a_wrong_value_names_key_line_and_remedy() {
    let rows = [
        (
            "COUNT=3\nTIMEOUT=1m\n",
            "TIMEOUT",
            ":2: TIMEOUT: `1m` is not a number from 1 to 3600",
            "write a whole number of seconds from 1 to 3600",
        ),
        ("TIMEOUT=0\n", "TIMEOUT", ":1: TIMEOUT: `0` is", "seconds"),
        (
            "COUNT=0\n",
            "COUNT",
            "`0` is not a number from 1 to 240",
            "write a whole number of runs from 1 to 240",
        ),
        ("COUNT=+5\n", "COUNT", "`+5`", "runs"),
        ("COUNT=-1\n", "COUNT", "`-1`", "runs"),
        ("ALTBOOT_TIMEOUT=86401\n", "ALTBOOT_TIMEOUT", "from 1 to 86400", "seconds"),
        ("CHECK_LIMIT=99999999999999999999\n", "CHECK_LIMIT", "from 1 to 3600", "seconds"),
        ("REQUIRE_UNITS=yes\n", "REQUIRE_UNITS", "`yes` is neither 0 nor 1", "write 0 or 1"),
    ];
    for (text, key, message, hint) in rows {
        let (root, paths) = with(text);
        let e = strict(&paths, &[]).unwrap_err();
        assert_eq!((e.code(), e.subject()), (Code::ConfInvalid, Some(key)), "{text}");
        assert!(e.message().starts_with(root.at(FILE).to_str().unwrap()), "{e}");
        assert!(e.message().contains(message) && e.hint().contains(hint), "{e}");
    }
}

#[test]
fn the_ends_of_each_range_are_in_it() {
    for number in NUMBERS {
        let (least, most) = (i64::from(*number.range.start()), i64::from(*number.range.end()));
        for (value, right) in [(least, true), (most, true), (least - 1, false), (most + 1, false)] {
            let (_root, paths) = with(&format!("{}={value}\n", number.key));
            assert_eq!(strict(&paths, &[]).is_ok(), right, "{} {value}", number.key);
        }
        assert!(number.range.contains(&number.default), "{}", number.key);
    }
}

/// A mistake in the release on trial must not decide the trial.
#[test]
fn on_trial_a_wrong_value_is_a_warning_and_the_default() {
    let (_root, paths) = with("TIMEOUT=soon\nCOUNT=3\nREQUIRE_UNITS=no\nTIMOUT=5\n");
    let (conf, log) = logged(|| RollbackConf::on_trial(&paths, &[]));
    assert_eq!(conf, RollbackConf { count: 3, ..RollbackConf::default() });
    assert_eq!(log.len(), 3, "{log:?}");
    assert!(
        log[0].starts_with("WARN ") && log[0].ends_with(":4: unknown key TIMOUT; it is ignored"),
        "{log:?}"
    );
    assert!(log[1].contains("`soon`") && log[1].ends_with("; it is ignored"), "{log:?}");
    assert!(log[2].contains("`no`"), "{log:?}");
}

#[test]
fn on_trial_a_file_that_cannot_be_read_is_a_warning() {
    for text in ["COUNT=3\nTIMEOUT=$(slow)\n", "COUNT=3\nthis is no assignment\n", "COUNT=3\n\0"] {
        let (_root, paths) = with(text);
        let e = strict(&paths, &[]).unwrap_err();
        assert!(matches!(e.code(), Code::ConfExpansion | Code::ConfSyntax), "{e}");
        let (conf, log) = logged(|| RollbackConf::on_trial(&paths, &words(&["", "4"])));
        assert_eq!(conf, RollbackConf { count: 4, ..RollbackConf::default() }, "{text}");
        assert!(log.len() == 1 && log[0].ends_with("; it is ignored"), "{log:?}");
    }
    let (root, paths) = with("");
    std::fs::remove_file(root.at(FILE)).unwrap();
    symlink("/no/such/file", root.at(FILE)).unwrap();
    assert_eq!(strict(&paths, &[]).unwrap_err().code(), Code::ConfMissing);
    std::fs::remove_file(root.at(FILE)).unwrap();
    std::fs::create_dir(root.at(FILE)).unwrap();
    assert_eq!(strict(&paths, &[]).unwrap_err().code(), Code::ConfMissing);
    let (conf, log) = logged(|| RollbackConf::on_trial(&paths, &[]));
    assert_eq!((conf, log.len()), (RollbackConf::default(), 1));
}

#[test]
fn arguments_win_over_the_file() {
    let (_root, paths) = with("TIMEOUT=5\nCOUNT=6\nCHECK_LIMIT=7\n");
    let values = |conf: RollbackConf| (conf.timeout.as_secs(), conf.count, conf.check_limit.as_secs());
    for (args, expected) in [
        (&[][..], (5, 6, 7)),
        (&["10"][..], (10, 6, 7)),
        (&["10", "3"][..], (10, 3, 7)),
        (&["", "3"][..], (5, 3, 7)),
    ] {
        assert_eq!(values(strict(&paths, &words(args)).unwrap()), expected, "{args:?}");
        assert_eq!(values(RollbackConf::on_trial(&paths, &words(args))), expected, "{args:?}");
    }
    for (args, tolerant) in
        [(&["x", "3"][..], (5, 3, 7)), (&["10", "0"][..], (10, 6, 7)), (&["10", "3", "more"][..], (10, 3, 7))]
    {
        let e = strict(&paths, &words(args)).unwrap_err();
        assert_eq!(e.code(), Code::Usage, "{args:?}");
        let (conf, log) = logged(|| RollbackConf::on_trial(&paths, &words(args)));
        assert_eq!(values(conf), tolerant, "{args:?}");
        assert!(log.len() == 1 && log[0].ends_with("; it is ignored"), "{log:?}");
    }
}
