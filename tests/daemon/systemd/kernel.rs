//! What is asked of the kernel: the end of the system, and news of disks.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use copal::sys::power::{self, Shutdown};
use copal::sys::uevent::Uevents;
use nix::libc;

use super::{child, is_child};
use crate::kit::needs::{can_run, has, is_root, needs};
use crate::kit::process::Ended;

/// In a process namespace of its own, `reboot(2)` ends the namespace, and its first process by a signal that tells which
/// end was asked for: see reboot(2).
#[test]
fn reboot_2_is_called() {
    if is_child() {
        let ending = match std::env::var("COPAL_TEST_ENDING").unwrap().as_str() {
            "reboot" => Shutdown::Reboot,
            _ => Shutdown::PowerOff,
        };
        let failed = power::kernel(ending);
        panic!("still here: {failed:?}");
    }
    needs!(is_root, |test| has(test, "unshare"));
    for (ending, signal) in [("reboot", libc::SIGHUP), ("power-off", libc::SIGINT)] {
        let out = child(&["unshare", "--pid", "--fork"], "systemd::kernel::reboot_2_is_called")
            .env("COPAL_TEST_ENDING", ending)
            .output()
            .unwrap();
        assert_eq!(out.status.signal(), Some(signal), "{ending}: {out:?}");
    }
}

#[test]
fn reboot_2_without_the_right_to_is_an_error() {
    if is_child() {
        let e = power::kernel(Shutdown::Reboot).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EPERM));
        return;
    }
    needs!(is_root, |test| has(test, "setpriv"));
    // In its own namespace all the same: should the right still be there, only that ends.
    let before =
        ["unshare", "--pid", "--fork", "setpriv", "--bounding-set=-sys_boot", "--inh-caps=-sys_boot"];
    let out = child(&before, "systemd::kernel::reboot_2_without_the_right_to_is_an_error").output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

#[test]
fn staying_never_ends() {
    if is_child() {
        power::stay();
    }
    let mut child = Ended(child(&[], "systemd::kernel::staying_never_ends").spawn().unwrap());
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.0.try_wait().unwrap().is_none());
}

#[test]
fn everything_is_synced_or_the_limit_ends_it() {
    assert!(!power::sync_within(Duration::ZERO));
    assert!(power::sync_within(Duration::from_secs(120)));
}

#[test]
fn a_disk_that_appears_is_reported() {
    needs!(can_run, |test| has(test, "losetup"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    let losetup = |args: &[&str]| {
        let out = Command::new("losetup").args(args).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    };

    let events = Uevents::open().unwrap();
    let node = losetup(&["-f", "--show", file.to_str().unwrap()]);
    assert!(events.wait(Instant::now() + Duration::from_secs(60)).unwrap());
    losetup(&["-d", &node]);
    assert!(events.wait(Instant::now() + Duration::from_secs(60)).unwrap());

    // Whatever other tests do with disks ends some time; then a wait ends at its deadline, neither sooner nor much later.
    let quiet = (0..200).find_map(|_| {
        let began = Instant::now();
        let told = events.wait(began + Duration::from_millis(50)).unwrap();
        (!told).then(|| began.elapsed())
    });
    let quiet = quiet.expect("disks come and go all the time");
    assert!((Duration::from_millis(50)..Duration::from_secs(40)).contains(&quiet), "{quiet:?}");
}
