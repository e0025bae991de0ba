//! VPN, engine and board, and what is true of every check.

use std::time::{Duration, Instant};

use copal::error::{Code, Effect};
use copal::rollback::checks::{judge, passed};
use copal::state::history::CheckResult::{Failed, Passed, Unknown};

use super::rig::{BOARD, ENGINE, FINE, Rig, VARIABLES, VPN, find, names};
use crate::kit::log::logged;
use crate::kit::process::{HANG, runs, soon};

#[test]
fn a_healthy_device_passes() {
    let rig = Rig::healthy();
    let (found, log) = logged(|| rig.run());
    assert_eq!(names(&found), ["vpn", "engine", "board", "units"]);
    assert!(found[..3].iter().all(|c| c.required) && !found[3].required, "{found:?}");
    assert!(passed(&found));
    judge(&found).unwrap();
    assert_eq!(log.len(), 4, "{log:?}");
    assert!(log[1].starts_with("INFO health check engine: passed after 0."), "{log:?}");
    assert!(log[1].ends_with(" s: it ended with status 0"), "{log:?}");
    assert!(log[3].starts_with("INFO health check units (only reported): unknown after "), "{log:?}");
}

/// Up now, what was kept, and what the script `rollback-tests` made of it: only one row fails.
#[test]
fn the_vpn_counts_if_it_was_up_before() {
    let rows = [
        (true, Some("1"), Passed, "it is up"),
        (true, Some("0"), Passed, "it is up"),
        (true, None, Passed, "it is up"),
        (false, Some("1"), Failed, "it is down, and was up before the update"),
        (false, Some("0"), Passed, "it is down, as it was before the update"),
        (false, None, Unknown, "it is down; it is unknown whether it was up before the update"),
        (false, Some("maybe"), Unknown, "it is down; it is unknown whether it was up before the update"),
    ];
    for (up, before, result, reason) in rows {
        let rig = Rig::healthy();
        if up {
            rig.put(VPN, "");
        }
        if let Some(before) = before {
            rig.put(VARIABLES, &format!("BALENAOS_ROLLBACK_VPNONLINE={before}\n"));
        }
        let found = rig.run();
        assert_eq!(find(&found, "vpn"), (result, reason.to_owned()), "{up} {before:?}");
        assert_eq!(passed(&found), result != Failed, "{up} {before:?}");
    }
}

/// What the program is, and what its check comes to.
#[test]
fn the_programs_decide_by_their_status() {
    let rows = [
        ("#!/bin/sh\necho '[x][INFO] answers'\n", Passed, "answers"),
        (
            "#!/bin/sh\necho a; echo 'no answer' >&2; echo; exit 3\n",
            Failed,
            "it ended with status 3, after it said: no answer",
        ),
        ("#!/bin/sh\nkill -SEGV $$\n", Failed, "it was ended by SIGSEGV"),
        // No interpreter: bash, as for other programs of boards.
        ("[[ 1 ]] && exit 0; exit 1\n", Passed, "it ended with status 0"),
        ("#!/bin/sh\n[ -z \"${CRYPT+x}\" ] && [ -z \"$(cat)\" ]\n", Passed, "it ended with status 0"),
    ];
    for (name, path) in [("engine", ENGINE), ("board", BOARD)] {
        for (text, result, reason) in rows {
            let rig = Rig::healthy();
            rig.root.program(path, text);
            let found = rig.run();
            assert_eq!(find(&found, name), (result, reason.to_owned()), "{text}");
            assert_eq!(passed(&found), result == Passed, "{text}");
        }
    }
}

#[test]
fn a_program_that_is_missing_or_cannot_run_has_failed() {
    for (name, path) in [("engine", ENGINE), ("board", BOARD)] {
        let rig = Rig::healthy();
        std::fs::remove_file(rig.root.at(path)).unwrap();
        let (result, reason) = rig.one(name);
        assert_eq!(result, Failed);
        assert!(reason.starts_with("cannot run /") && reason.contains("No such file"), "{reason}");

        rig.root.program(path, "#!/no/such/shell\n");
        let (result, reason) = rig.one(name);
        assert_eq!(result, Failed);
        assert!(reason.ends_with(": its interpreter /no/such/shell is missing"), "{reason}");
        assert!(!passed(&rig.run()));
    }
}

#[test]
fn all_are_made_though_one_has_failed_and_the_error_names_each() {
    let rig = Rig::healthy();
    rig.put(VARIABLES, "BALENAOS_ROLLBACK_VPNONLINE=1\n");
    rig.root.program(ENGINE, "#!/bin/sh\necho 'no socket'\nexit 1\n");
    rig.root.program(BOARD, "#!/bin/sh\ntouch \"${0%/*}/was-run\"\n");
    let found = rig.run();
    assert_eq!(names(&found), ["vpn", "engine", "board", "units"]);
    assert!(rig.root.at("/usr/bin/was-run").exists());
    let e = judge(&found).unwrap_err();
    assert_eq!((e.code(), e.effect(), e.subject()), (Code::HealthCheckFailed, Effect::Refused, Some("vpn")));
    assert_eq!(
        e.message(),
        "the system is not healthy: vpn: it is down, and was up before the update; engine: it ended with status 1, after it said: no socket"
    );
}

#[test]
fn a_program_that_hangs_is_ended_with_all_it_has_started() {
    let mut rig = Rig::healthy();
    rig.conf.check_limit = Duration::from_secs(2);
    let hang = "#!/bin/sh\ntrap '' TERM\necho 'still waiting'\nsleep 1000 &\necho $! >\"${0%/*}/pid\"\nwait\nsleep 1000\n";
    rig.root.program(ENGINE, hang);
    let began = Instant::now();
    let found = rig.run();
    let took = began.elapsed();
    assert!((Duration::from_secs(2)..HANG).contains(&took), "{took:?}");
    let expected = "it was ended, having taken longer than 2 s, after it said: still waiting";
    assert_eq!(find(&found, "engine"), (Failed, expected.to_owned()));
    assert_eq!(find(&found, "board").0, Passed, "those behind it are made");
    assert!(found[1].seconds >= 2.0 && found[1].seconds <= took.as_secs_f64(), "{found:?}");
    let pid = rig.root.read("/usr/lib/balena/pid");
    assert!(!pid.is_empty() && soon(|| !runs(&pid)), "{pid}");
}

#[test]
fn a_program_that_never_stops_talking_is_ended_too() {
    let mut rig = Rig::healthy();
    rig.conf.check_limit = Duration::from_secs(1);
    rig.root.program(BOARD, "#!/bin/sh\nwhile :; do echo 'again and again'; done\n");
    let began = Instant::now();
    assert_eq!(rig.one("board").0, Failed);
    assert!(began.elapsed() < HANG);
}

#[test]
fn a_reason_is_short() {
    let rig = Rig::healthy();
    for exit in [0, 1] {
        rig.root.program(ENGINE, &format!("#!/bin/sh\nprintf '%01000d' 0\nexit {exit}\n"));
        let (_, reason) = rig.one("engine");
        assert!((200..300).contains(&reason.chars().count()), "{reason}");
    }
}

#[test]
fn what_a_check_leaves_running_is_not_waited_for() {
    let rig = Rig::healthy();
    rig.root.program(BOARD, "#!/bin/sh\nsleep 600 &\necho $! >\"${0%/*}/pid\"\n");
    let began = Instant::now();
    assert_eq!(rig.one("board").0, Passed);
    assert!(began.elapsed() < HANG);
    let pid = rig.root.read("/usr/bin/pid").trim().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    rig.root.program(BOARD, FINE);
    assert!(passed(&rig.run()));
}
