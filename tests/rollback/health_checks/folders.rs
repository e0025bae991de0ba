//! Checks that owners add.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use copal::rollback::checks::passed;
use copal::state::history::CheckResult::{Failed, Passed, Unknown};

use super::rig::{FINE, Rig, find, names};
use crate::kit::log::logged;
use crate::kit::needs::{needs, tools};
use crate::kit::process::HANG;

const REQUIRED: &str = "/etc/copal/health.d";
const WANTED: &str = "/etc/copal/health.wanted.d";

#[test]
fn required_ones_decide_and_wanted_ones_are_reported() {
    needs!(tools);
    let rig = Rig::healthy();
    rig.root.program(&format!("{REQUIRED}/20-modem"), "#!/bin/bash\n[[ 1 ]] && echo registered\n");
    rig.root.program(&format!("{REQUIRED}/10-can.py"), "#!/usr/bin/env python3\nprint('bus is up')\n");
    rig.root.program(&format!("{WANTED}/gps"), "#!/bin/sh\necho 'no fix'\nexit 1\n");
    let (found, log) = logged(|| rig.run());
    let warned = log
        .iter()
        .filter(|l| l.starts_with("WARN health check health.wanted.d/gps (only reported): failed "));
    assert_eq!(warned.count(), 1, "{log:?}");
    assert_eq!(
        names(&found),
        ["vpn", "engine", "board", "health.d/10-can.py", "health.d/20-modem", "health.wanted.d/gps", "units"]
    );
    assert_eq!(
        found.iter().map(|c| c.required).collect::<Vec<_>>(),
        [true, true, true, true, true, false, false]
    );
    assert_eq!(find(&found, "health.d/10-can.py"), (Passed, "bus is up".into()));
    assert_eq!(find(&found, "health.d/20-modem"), (Passed, "registered".into()));
    assert_eq!(
        find(&found, "health.wanted.d/gps"),
        (Failed, "it ended with status 1, after it said: no fix".into())
    );
    assert!(passed(&found));

    rig.root.program(&format!("{REQUIRED}/20-modem"), "#!/bin/sh\nexit 1\n");
    let found = rig.run();
    assert_eq!(found.len(), 7, "the others are made");
    assert!(!passed(&found));
}

#[test]
fn they_run_one_after_the_other_by_name() {
    let rig = Rig::healthy();
    for name in ["c", "a", "B", "10"] {
        let text = "#!/bin/sh\necho \"${0##*/} begins\" >>\"${0%/*}/.log\"\nsleep 0.1\necho \"${0##*/} ends\" >>\"${0%/*}/.log\"\n";
        rig.root.program(&format!("{REQUIRED}/{name}"), text);
    }
    assert!(passed(&rig.run()));
    let said = rig.root.read(&format!("{REQUIRED}/.log"));
    let expected: String = ["10", "B", "a", "c"].map(|n| format!("{n} begins\n{n} ends\n")).concat();
    assert_eq!(said, expected);
}

#[test]
fn backup_files_of_editors_and_packages_are_no_checks() {
    let rig = Rig::healthy();
    let fail = "#!/bin/sh\nexit 1\n";
    for name in
        [".hidden", "x~", "#x#", "x.bak", "x.orig", "x.rej", ".x.swp", "x.tmp", "x.dpkg-old", "x.rpmnew"]
    {
        rig.root.program(&format!("{REQUIRED}/{name}"), fail);
    }
    let found = rig.run();
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(passed(&found));
}

#[test]
fn what_cannot_be_meant_is_a_warning_and_no_verdict() {
    let rig = Rig::healthy();
    rig.put(&format!("{REQUIRED}/README"), "How to add a check\n");
    std::fs::create_dir(rig.root.at(REQUIRED).join("old")).unwrap();
    let (found, log) = logged(|| rig.run());
    assert_eq!(
        find(&found, "health.d/README"),
        (Unknown, "it is not run: it is not executable (chmod +x)".into())
    );
    assert_eq!(find(&found, "health.d/old"), (Unknown, "it is not run: it is not a file".into()));
    assert!(passed(&found));
    for name in ["README", "old"] {
        let file = rig.root.at(REQUIRED).join(name);
        let line = format!("WARN not running {}: ", file.display());
        assert!(log.iter().any(|l| l.starts_with(&line)), "{log:?}");
    }
}

#[test]
fn what_was_meant_and_cannot_be_run_fails() {
    let rig = Rig::healthy();
    std::fs::create_dir_all(rig.root.at(REQUIRED)).unwrap();
    symlink("/no/such/check", rig.root.at(REQUIRED).join("gone")).unwrap();
    rig.root.program("/opt/check", FINE);
    symlink(rig.root.at("/opt/check"), rig.root.at(REQUIRED).join("linked")).unwrap();
    let found = rig.run();
    let (result, reason) = find(&found, "health.d/gone");
    assert_eq!(result, Failed);
    assert!(reason.contains("health.d/gone: No such file"), "{reason}");
    assert_eq!(find(&found, "health.d/linked").0, Passed);
    assert!(!passed(&found));
}

#[test]
fn a_folder_that_cannot_be_read_is_not_an_empty_one() {
    for (folder, name, good) in [(REQUIRED, "health.d", false), (WANTED, "health.wanted.d", true)] {
        let rig = Rig::healthy();
        rig.put(folder, "");
        let found = rig.run();
        let (result, reason) = find(&found, name);
        assert_eq!(result, Failed);
        assert!(reason.contains("Not a directory"), "{reason}");
        assert_eq!(passed(&found), good);
    }
}

#[test]
fn each_has_the_limit_of_its_own() {
    let mut rig = Rig::healthy();
    rig.conf.check_limit = Duration::from_secs(2);
    rig.root.program(&format!("{REQUIRED}/a"), "#!/bin/sh\nsleep 1000\n");
    rig.root.program(&format!("{WANTED}/b"), "#!/bin/sh\nsleep 1000\n");
    rig.root.program(&format!("{WANTED}/c"), FINE);
    let began = Instant::now();
    let found = rig.run();
    assert!(began.elapsed() < HANG);
    let late = (Failed, "it was ended, having taken longer than 2 s".to_owned());
    assert_eq!(find(&found, "health.d/a"), late);
    assert_eq!(find(&found, "health.wanted.d/b"), late);
    assert_eq!(find(&found, "health.wanted.d/c").0, Passed);
}
