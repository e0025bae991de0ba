//! The runner as a library.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use copal::error::{Code, Effect, Error};
use copal::hooks::{Phases, Run, Signals, limit, run, run_program, running};

use crate::kit::alone::{in_own_process, is_alone};
use crate::kit::needs::{needs, test_name, tools};
use crate::support::{COPAL, STAND_IN, Site, logged, program, soon, texts};

fn fails(site: &Site, run_: &Run) -> Error {
    run(&site.paths(), run_).unwrap_err()
}

#[test]
fn a_forward_hook_that_fails_stops_the_others_and_all_clean_up_hooks_run() {
    let site = Site::new();
    site.tell(&[("10-x/forward", 0), ("20-x", 3), ("30-x", 0), ("a/after", 0), ("b/before", 0)]);
    site.tell(&[("10-x/fwd_cleanup", 1), ("z/cleanup", 0), ("c/commit", 0)]);
    let e = fails(&site, &site.run(Phases::FORWARD));
    assert_eq!((e.code(), e.effect(), e.subject()), (Code::HookFailed, Effect::Written, Some("20-x")));
    assert_eq!(e.message(), "the forward hook 20-x failed: it ended with status 3");
    assert_eq!(site.told(), ["10-x/forward", "20-x", "10-x/fwd_cleanup", "z/cleanup"]);

    std::fs::remove_file(site.at("out")).unwrap();
    let e = fails(&site, &site.run(Phases { commit: true, ..Phases::FULL }));
    assert_eq!(e.subject(), Some("20-x"));
    assert_eq!(
        site.told(),
        ["b/before", "10-x/forward", "20-x", "a/after", "10-x/fwd_cleanup", "z/cleanup"],
        "what was not done is not confirmed"
    );
}

#[test]
fn clean_up_is_owed_whatever_after_hooks_do() {
    let site = Site::new();
    site.tell(&[("1-x", 1), ("a/after1", 2), ("a/after2", 0), ("c/cleanup", 0)]);
    let e = fails(&site, &site.run(Phases::FULL));
    assert_eq!(site.told(), ["1-x", "a/after1", "c/cleanup"]);
    assert_eq!(e.subject(), Some("1-x"));
    assert!(e.message().ends_with("; the after hook a/after1 failed: it ended with status 2"), "{e}");
}

#[test]
fn an_after_hook_of_the_first_format_runs_although_a_forward_hook_before_it_failed() {
    let site = Site::new();
    site.tell(&[("1-boot", 1), ("2-after", 0), ("3-cleanup", 0)]);
    let e = fails(&site, &site.run(Phases::FULL));
    assert_eq!(site.told(), ["1-boot", "2-after", "3-cleanup"]);
    assert_eq!((e.code(), e.subject()), (Code::HookFailed, Some("1-boot")));

    // What has run does not run again, whether it has failed or not.
    let site = Site::new();
    site.tell(&[("1-after", 0), ("2-after", 1), ("3-after", 0)]);
    fails(&site, &site.run(Phases::FULL));
    assert_eq!(site.told(), ["1-after", "2-after", "3-after"]);
}

#[test]
fn a_hook_of_another_phase_that_fails_ends_the_run_at_once() {
    for (word, phases) in [
        ("before", Phases::BEFORE),
        ("after", Phases::AFTER),
        ("commit", Phases::COMMIT),
        ("before", Phases::FULL),
    ] {
        let site = Site::new();
        let names = [format!("1/{word}"), format!("2/{word}"), format!("3/{word}")];
        site.tell(&[(&names[0], 0), (&names[1], 9), (&names[2], 0), ("x/cleanup", 0), ("x/forward", 0)]);
        let e = fails(&site, &site.run(phases));
        assert_eq!(site.told(), names[..2], "{word}");
        assert_eq!((e.code(), e.subject()), (Code::HookFailed, Some(names[1].as_str())));
        assert!(e.message().contains(&format!("the {word} hook")), "{e}");
    }
}

#[test]
fn a_hook_killed_by_a_signal_has_failed() {
    let site = Site::new();
    site.hook("1-x", "#!/bin/sh\necho 'about to die'\nkill -SEGV $$\n");
    let e = fails(&site, &site.run(Phases::FORWARD));
    assert!(e.message().ends_with("it was ended by SIGSEGV, after it said: about to die"), "{e}");
}

#[test]
fn output_and_end_are_logged_with_the_name() {
    let site = Site::new();
    site.hook("5-x/forward", "#!/bin/sh\necho one\necho '[5-x][WARN] two' >&2\n");
    site.hook("6-x", "#!/bin/sh\nexit 4\n");
    let (_, log) = logged(|| run(&site.paths(), &site.run(Phases::FORWARD)));
    let all = texts(&log);
    assert_eq!(
        all[..3],
        ["INFO running forward hook 5-x/forward", "INFO 5-x/forward: one", "WARN 5-x/forward: two"]
    );
    assert!(all[3].starts_with("INFO forward hook 5-x/forward: it ended with status 0 after 0."), "{all:?}");
    assert!(all[5].starts_with("ERROR forward hook 6-x: it ended with status 4 after 0."), "{all:?}");
    assert_eq!(all.len(), 6);
    assert!(log[..4].iter().all(|l| l.fields["COPAL_HOOK"] == "5-x/forward"));
    let end = &log[5].fields;
    assert_eq!((end["COPAL_HOOK"].as_str(), end["COPAL_STATUS"].as_str()), ("6-x", "4"));
    assert_eq!(end["COPAL_PHASE"], "forward");
    assert!(end["COPAL_DURATION"].parse::<f64>().unwrap() < 20.0);
}

#[test]
fn each_hook_has_the_interpreter_it_needs() {
    let site = Site::new();
    let said = |text: &str, mode: &str| {
        program(&site.hooks().join("1-x"), text, mode);
        let (result, log) = logged(|| run(&site.paths(), &site.run(Phases::FORWARD)));
        (result, texts(&log).iter().map(|l| (*l).to_owned()).collect::<Vec<_>>())
    };
    // Without a name in it: bash.
    let (result, log) = said("[[ -n $BASH_VERSION ]] && echo \"bash ${BASH_SOURCE[0]##*/}\"\n", "755");
    result.unwrap();
    assert!(log.contains(&"INFO 1-x: bash 1-x".to_owned()), "{log:?}");
    said("", "755").0.unwrap();
    // Not executable: sh, and somebody has to know.
    for text in ["#!/bin/bash\necho \"$0\" $#\n", "echo \"$0\" $#\n"] {
        let (result, log) = said(text, "644");
        result.unwrap();
        assert!(log[1].starts_with("WARN 1-x is not executable (chmod +x)"), "{log:?}");
        assert_eq!(log[2], format!("INFO 1-x: {}/1-x 0", site.hooks().display()));
    }
    for (text, mode, why) in [
        ("#!/usr/bin/python3\nprint(1)\n", "644", "it is not executable"),
        ("#!/no/such/shell\n", "755", "its interpreter /no/such/shell is missing"),
    ] {
        let e = said(text, mode).0.unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::HookFailed, Effect::Refused), "{e}");
        assert!(e.message().contains(&format!("cannot run the forward hook 1-x: {why}")), "{e}");
    }
    std::fs::copy("/bin/true", site.hooks().join("1-x")).unwrap();
    std::fs::set_permissions(site.hooks().join("1-x"), PermissionsExt::from_mode(0o644)).unwrap();
    let e = fails(&site, &site.run(Phases::FORWARD));
    assert!(e.message().contains("it is not executable (chmod +x), and no shell could run it"), "{e}");
}

#[test]
fn an_update_refuses_before_the_first_hook_and_an_undo_gets_as_far_as_it_can() {
    let site = Site::new();
    site.tell(&[("1-x", 0), ("3-x", 0)]);
    site.hook("2-x", "#!/no/such/shell\n");
    let mut request = site.run(Phases::FORWARD);
    request.during_update = "1".into();
    let e = fails(&site, &request);
    assert_eq!((e.code(), e.effect(), e.subject()), (Code::HookFailed, Effect::Refused, Some("2-x")));
    assert!(site.told().is_empty());
    request.during_update = "0".into();
    let e = fails(&site, &request);
    assert_eq!((site.told(), e.effect()), (vec!["1-x".to_owned()], Effect::Written));
}

const TRACED: [(&str, &str, bool); 5] = [
    ("1-sh", "#!/bin/sh\n: traced\n", true),
    ("2-bash", "#!/bin/bash -u\n[[ $- == *u* ]] || exit 9\n: traced\n", true),
    ("3-env", "#!/usr/bin/env bash\n: traced\n", true),
    ("4-none", "[[ 1 ]] && : traced\n", true),
    ("5-python", "#!/usr/bin/env python3\nimport sys; sys.exit(len(sys.argv) != 1)\n", false),
];

#[test]
fn debugging_traces_scripts_by_their_own_shells_and_leaves_binaries_alone() {
    needs!(tools);
    let site = Site::new();
    for (name, text, _) in TRACED {
        site.hook(name, text);
    }
    program(&site.hooks().join("6-plain"), ": traced\n", "644");
    let copied = std::process::Command::new("cp").arg("/bin/true").arg(site.hooks().join("7-elf")).status();
    assert!(copied.unwrap().success());
    let traced = |json: &str| {
        program(&site.at("mnt/boot/config.json"), json, "644");
        let (result, log) = logged(|| run(&site.paths(), &site.run(Phases::FORWARD)));
        assert_eq!(result.unwrap().len(), 7);
        let of = |name: &str| log.iter().any(|l| l.text.starts_with(&format!("INFO {name}: +")));
        assert!(!of("7-elf"));
        TRACED.iter().map(|(name, _, expected)| of(name) == *expected).chain([of("6-plain")]).all(|x| x)
    };
    for on in ["{\"debug\":1}", "{\"debug\":\"1\"}"] {
        assert!(traced(on), "{on}");
    }
    let (_, log) = {
        program(&site.at("mnt/boot/config.json"), "{\"debug\":1", "644");
        logged(|| run(&site.paths(), &site.run(Phases::FORWARD)).unwrap())
    };
    assert!(!log.iter().any(|l| l.text.contains(": + ")), "{:?}", texts(&log));
    for off in ["{}", "{\"debug\":0}", "{\"debug\":true}", "{\"debug\":11}", "{\"debug\":null}", "[1]"] {
        assert!(!traced(off), "{off}");
    }
}

#[test]
fn what_takes_too_long_is_ended_where_there_is_a_limit() {
    let site = Site::new();
    site.hook("1-x", "#!/bin/sh\nsleep 60 & wait\n");
    let mut request = site.run(Phases::FORWARD);
    request.limit = Some(Duration::from_millis(300));
    let e = fails(&site, &request);
    assert!(e.to_string().contains("COPAL_HOOK_TIMEOUT") && e.message().contains("longer than 0.3 s"), "{e}");
    assert_eq!(limit(Some("90".into())).unwrap(), Some(Duration::from_secs(90)));
    assert_eq!(limit(None).unwrap(), None);
    for wrong in ["0", "-1", "5m", "1.5"] {
        let e = limit(Some(wrong.into())).unwrap_err();
        assert_eq!((e.code(), e.subject()), (Code::Usage, Some("COPAL_HOOK_TIMEOUT")), "{wrong}");
    }
}

#[test]
fn the_hook_that_runs_is_seen_from_outside() {
    let site = Site::new();
    site.hook("7-x/before", "#!/bin/sh\necho $$ >\"$HOOKS_DIR/../pid\"\nwhile [ ! -e \"$HOOKS_DIR/../go\" ]; do sleep 0.02; done\n");
    assert_eq!(running(&site.paths()).unwrap(), None);
    let request = site.run(Phases::BEFORE);
    let paths = site.paths();
    let thread = std::thread::spawn(move || run(&paths, &request).map(drop));
    assert!(soon(|| running(&site.paths()).unwrap().is_some() && !site.read("pid").is_empty()));
    let seen = running(&site.paths()).unwrap().unwrap();
    assert_eq!((seen.name.as_str(), seen.phase.as_str()), ("7-x/before", "before"));
    assert_eq!(seen.pid.to_string(), site.read("pid").trim());
    assert!(seen.since.ends_with('Z') && seen.since.starts_with("20"), "{seen:?}");
    std::fs::write(site.at("go"), "").unwrap();
    thread.join().unwrap().unwrap();
    assert_eq!(running(&site.paths()).unwrap(), None);
    assert_eq!(std::fs::read_dir(site.at("run/copal")).unwrap().count(), 0);
    // What a runner left that was killed counts for nothing.
    let stale = r#"{"name":"x","phase":"before","pid":1,"since":"2024-05-01T12:00:00Z"}"#;
    std::fs::write(site.at("run/copal/hook"), stale).unwrap();
    assert_eq!(running(&site.paths()).unwrap(), None);
}

#[test]
fn a_run_goes_on_where_it_cannot_be_shown() {
    let site = Site::new();
    std::fs::write(site.at("run"), "no folder").unwrap();
    site.tell(&[("1-x", 0)]);
    run(&site.paths(), &site.run(Phases::FORWARD)).unwrap();
    assert_eq!((site.told(), running(&site.paths()).unwrap()), (vec!["1-x".to_owned()], None));
}

#[test]
fn without_a_directory_there_is_nothing_to_do_and_one_that_cannot_be_read_is_an_error() {
    let site = Site::new();
    let mut request = site.run(Phases::FULL);
    request.dir = site.at("none");
    let (ran, log) = logged(|| run(&site.paths(), &request));
    assert!(ran.unwrap().is_empty());
    assert!(texts(&log)[0].starts_with("WARN the hook directory"), "{:?}", texts(&log));
    request.dir = site.at("file");
    std::fs::write(&request.dir, "").unwrap();
    assert_eq!(fails(&site, &request).code(), Code::Io);
}

#[test]
fn the_runner_of_another_release_may_be_a_script_or_copal() {
    let site = Site::new();
    site.hook(
        "x/before",
        "#!/bin/sh\necho \"says $DURING_UPDATE ${CRYPT-none}\"\necho \"$0\" >>\"$HOOKS_DIR/../ran\"\n",
    );
    site.hook("y/before", "#!/bin/sh\nexit \"$(cat \"$HOOKS_DIR/../status\")\"\n");
    let link = site.at("usr/bin/hostapp-update-hooks-v2");
    std::fs::create_dir_all(link.parent().unwrap()).unwrap();
    // The script ended as its hook did.
    for (runner, status) in [(STAND_IN, 5), (COPAL, 1)] {
        drop(std::fs::remove_file(&link));
        std::os::unix::fs::symlink(runner, &link).unwrap();
        let dir = site.hooks().join("");
        let ask = |status: &str| {
            std::fs::write(site.at("status"), status).unwrap();
            logged(|| {
                run_program(&link, &["--before".as_ref(), "--dir".as_ref(), dir.as_ref()], "1".as_ref())
            })
        };
        let (result, log) = ask("0");
        result.unwrap();
        assert!(texts(&log)[0].starts_with("INFO running "), "{:?}", texts(&log));
        assert!(log.iter().any(|l| l.text.ends_with(": says 1 none")), "{:?}", texts(&log));
        let e = ask("5").0.unwrap_err();
        assert_eq!((e.code(), e.subject()), (Code::HookFailed, link.to_str()));
        assert!(e.message().contains(&format!("it ended with status {status}")), "{e}");
    }
    assert_eq!(site.read("ran").lines().count(), 4);
    let e = run_program(Path::new("/no/such/runner"), &[], "1".as_ref()).unwrap_err();
    assert!(e.message().starts_with("cannot run /no/such/runner: "), "{e}");
}

/// In a process of its own, for signals concern the whole process.
#[test]
fn an_undo_is_not_stopped_half_way_by_a_signal_that_waits() {
    if !is_alone() {
        in_own_process(test_name!(), &[]);
        return;
    }
    let site = Site::new();
    site.hook("1-x", "#!/bin/sh\nkill -TERM $PPID\nsleep 0.2\n");
    site.tell(&[("2-x", 0)]);
    let _held = copal::sys::signal::SignalGuard::begin().unwrap();
    let mut request = site.run(Phases::FORWARD);
    let e = fails(&site, &request);
    assert_eq!((e.code(), e.effect(), e.subject()), (Code::Interrupted, Effect::Completed, Some("2-x")));
    assert!(e.message().contains("interrupted by SIGTERM before 2-x") && site.told().is_empty(), "{e}");
    // It is still there for whoever holds it off, and an undo goes on to its end.
    request.signals = Signals::RunToTheEnd;
    assert_eq!(run(&site.paths(), &request).unwrap().len(), 2);
    assert_eq!(site.told(), ["2-x"]);
}
