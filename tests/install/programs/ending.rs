//! Power off and reboot: the ladder with a clock of its own, and the board's own way in a real bash.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use copal::config::paths::Paths;
use copal::error::{Code, Effect};
use copal::install::board::Environment;
use copal::install::shutdown::{
    ShutdownMethod, ShutdownRefusal, Ways, await_adbd, end, helper, shutdown_methods,
};
use copal::sys::command::is_running;
use copal::sys::power::Shutdown;

use crate::kit::log::logged;
use crate::kit::process::{HANG, Root, runs, soon};

const POWER: &str = "/usr/libexec/os-helpers-power";

fn environment(root: &Root) -> Environment {
    Environment::new(&Paths::new(root.path()), Path::new("/config.json")).with_target(Path::new("/dev/sdx"))
}

/// What happens on the way down, in order.
fn way_down(
    how: Shutdown,
    answers: Vec<(&'static str, u64, Result<(), ShutdownRefusal>)>,
) -> (String, Vec<String>) {
    let story = RefCell::new(Vec::new());
    let methods = answers
        .into_iter()
        .map(|(name, timeout, answer)| ShutdownMethod {
            name,
            timeout: Duration::from_secs(timeout),
            act: Box::new({
                let story = &story;
                move || {
                    story.borrow_mut().push(name.to_owned());
                    answer.clone()
                }
            }),
        })
        .collect();
    let e = end(
        how,
        methods,
        || story.borrow_mut().push("flush".to_owned()),
        |time| story.borrow_mut().push(format!("{} s", time.as_secs())),
    );
    assert_eq!((e.code(), e.effect()), (Code::ShutdownFailed, Effect::Completed));
    (e.message(), story.into_inner())
}

#[test]
fn every_rung_has_its_time_and_flushed_disks() {
    let failed = Err(ShutdownRefusal::Failed("no bus".to_owned()));
    let (message, story) = way_down(
        Shutdown::PowerOff,
        vec![
            ("a", 60, Err(ShutdownRefusal::NotHere)),
            ("b", 120, failed),
            ("c", 30, Ok(())),
            ("d", 10, Ok(())),
        ],
    );
    // Who refused has no time to act; who accepted has.
    assert_eq!(story, ["flush", "a", "flush", "b", "flush", "c", "30 s", "flush", "d", "10 s"]);
    assert_eq!(
        message,
        "the installation is complete, but the device does not power off: b: no bus; c: nothing happened; d: nothing happened"
    );
}

#[test]
fn the_shutdown_steps_are_board_systemd_kernel_sysrq() {
    let root = Root::new();
    root.program(POWER, "os_helpers_reboot() { echo own way; }\n");
    let environment = environment(&root);
    let story = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = |what: &str| story.lock().unwrap().push(what.to_owned());
    let in_kernel = story.clone();
    let ways = Ways {
        systemd: Box::new(|| {
            note("systemd");
            Ok(())
        }),
        kernel: Box::new(move || {
            in_kernel.lock().unwrap().push("kernel".to_owned());
            Err(io::Error::from_raw_os_error(1))
        }),
        sysrq: Box::new(|| {
            note("sysrq");
            Ok(())
        }),
    };
    let (e, log) = logged(|| {
        let methods = shutdown_methods(Shutdown::Reboot, &environment, None, ways);
        end(Shutdown::Reboot, methods, || note("flush"), |time| note(&format!("{} s", time.as_secs())))
    });
    assert_eq!(
        *story.lock().unwrap(),
        ["flush", "60 s", "flush", "systemd", "120 s", "flush", "kernel", "flush", "sysrq", "10 s"]
    );
    assert!(log.contains(&"INFO os-helpers-power: own way".to_owned()), "{log:?}");
    assert!(log.contains(&"INFO the board's own way was asked to reboot".to_owned()), "{log:?}");
    assert!(e.message().contains("the kernel: Operation not permitted"), "{e}");
}

#[test]
fn the_boards_way_may_be_missing() {
    let root = Root::new();
    let own = |how| helper(how, &environment(&root), None, Duration::from_secs(60));
    assert_eq!(own(Shutdown::PowerOff), Err(ShutdownRefusal::NotHere));
    root.program(POWER, "os_helpers_reboot() { :; }\n");
    assert_eq!(own(Shutdown::PowerOff), Err(ShutdownRefusal::NotHere));
    assert_eq!(own(Shutdown::Reboot), Ok(()));
}

#[test]
fn the_boards_way_knows_its_helpers_and_configuration() {
    let root = Root::new();
    root.program("/usr/libexec/os-helpers-logging", "info() { echo \"logged $1\"; }\n");
    root.program(
        POWER,
        "type info >/dev/null\nos_helpers_shutdown() { info \"$GPIO $internal_dev\"; false; true; }\n",
    );
    let conf = root.program("/etc/resin-init-flasher.conf", "GPIO=17\n");
    let (result, log) =
        logged(|| helper(Shutdown::PowerOff, &environment(&root), Some(&conf), Duration::from_secs(60)));
    assert_eq!(result, Ok(()));
    assert!(log.contains(&"INFO os-helpers-power: logged 17 /dev/sdx".to_owned()), "{log:?}");
}

#[test]
fn the_boards_way_may_fail_hang_or_die() {
    let root = Root::new();
    let own = |body: &str| {
        root.program(POWER, &format!("os_helpers_shutdown() {{ {body}; }}\n"));
        helper(Shutdown::PowerOff, &environment(&root), None, Duration::from_secs(2))
    };
    assert_eq!(own("return 4"), Err(ShutdownRefusal::Failed("os_helpers_shutdown returned 4".to_owned())));
    assert_eq!(own("exit 0"), Err(ShutdownRefusal::Failed("it ended with status 0".to_owned())));
    let began = Instant::now();
    let late = "it was ended, having taken longer than 2 s".to_owned();
    assert_eq!(own("sleep 600"), Err(ShutdownRefusal::Failed(late)));
    assert!(began.elapsed() < HANG);
    // The power goes a moment after it has returned.
    assert_eq!(own(&format!("(sleep 3; touch {}) & return 0", root.at("off").display())), Ok(()));
    assert!(soon(|| root.at("off").exists()));
    root.program(POWER, "sleep 600\n");
    assert!(matches!(
        helper(Shutdown::PowerOff, &environment(&root), None, Duration::from_secs(2)),
        Err(ShutdownRefusal::Failed(_))
    ));
    root.program(POWER, "exit 7\n");
    let e = helper(Shutdown::PowerOff, &environment(&root), None, Duration::from_secs(60)).unwrap_err();
    assert!(
        matches!(e, ShutdownRefusal::Failed(why) if why.ends_with("os-helpers-power: it ended with status 7"))
    );
}

#[test]
fn adbd_is_awaited() {
    let mut child = Command::new("sleep").arg("0.3").spawn().unwrap();
    let pid = child.id().to_string();
    let mut waits = 0;
    await_adbd(Some(OsStr::new(&pid)), |time| {
        assert_eq!(time, Duration::from_secs(1));
        waits += 1;
        std::thread::sleep(Duration::from_millis(10));
    });
    // Nobody has reaped it, and yet it is gone.
    assert!(waits > 3 && !runs(&pid), "{waits}");
    child.wait().unwrap();
    await_adbd(Some(OsStr::new(&pid)), |_| panic!("it is gone"));
    assert!(is_running(1));
}

#[test]
fn an_odd_adbd_is_not_awaited() {
    await_adbd(None, |_| panic!("nobody to wait for"));
    for odd in ["", "0", "1", "-5", "abc", "99999999999"] {
        let ((), log) = logged(|| await_adbd(Some(OsStr::new(odd)), |_| panic!("{odd}")));
        assert_eq!(log.len(), usize::from(!odd.is_empty()), "{log:?}");
    }
}
