//! Inhibitor locks and the end of the system.

use std::io::{PipeReader, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use copal::sys::power::Shutdown;
use copal::sys::systemd::{self, Bus, SystemdError};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{child, is_child};
use crate::kit::dbus::{Daemon, Fake};
use crate::kit::process::HANG;

/// Whether nobody holds the lock any more, within `ms`.
fn is_free(lock: &PipeReader, ms: u16) -> bool {
    let mut fds = [PollFd::new(lock.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::from(ms)).unwrap() > 0
}

#[test]
fn a_lock_lasts_until_it_is_released() {
    let Some(daemon) = Daemon::start("inhibitor lock") else { return };
    let fake = Fake::start(&daemon);
    let lock = daemon.bus().inhibit_shutdown("copal", "the internal disk is being written").unwrap();
    assert_eq!(fake.calls(), ["Inhibit shutdown copal the internal disk is being written block"]);
    let mut other_end = fake.lock();
    assert!(!is_free(&other_end, 300));
    lock.release();
    assert!(is_free(&other_end, 5000));
    assert_eq!(other_end.read(&mut [0]).unwrap(), 0);

    let lock = daemon.bus().inhibit_shutdown("copal", "x").unwrap();
    let other_end = fake.lock();
    assert!(!is_free(&other_end, 0));
    drop(lock);
    assert!(is_free(&other_end, 5000));
}

#[test]
fn a_program_that_is_started_meanwhile_does_not_keep_the_lock() {
    let Some(daemon) = Daemon::start("lock and child") else { return };
    let fake = Fake::start(&daemon);
    let lock = daemon.bus().inhibit_shutdown("copal", "x").unwrap();
    let other_end = fake.lock();
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    lock.release();
    let free = is_free(&other_end, 5000);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert!(free);
}

#[test]
fn a_lock_that_is_not_to_be_had_is_no_error() {
    if is_child() {
        let began = Instant::now();
        assert!(systemd::inhibit_shutdown("copal", "x").is_none());
        assert!(began.elapsed() < HANG);
        return;
    }
    let name = "systemd::calls::a_lock_that_is_not_to_be_had_is_no_error";
    let run = |address: &str| {
        let status = child(&[], name).env("DBUS_SYSTEM_BUS_ADDRESS", address).status().unwrap();
        assert!(status.success(), "{address}");
    };
    run("unix:path=/nonexistent/bus");
    let Some(daemon) = Daemon::start("no lock") else { return };
    run(&daemon.address);
    let fake = Fake::start(&daemon).refusing("Inhibit");
    run(&daemon.address);
    assert_eq!(fake.count("Inhibit"), 1);
    drop(fake.silent_on("Inhibit"));
    let began = Instant::now();
    let bus = daemon.bus().with_limit(Duration::from_millis(200));
    assert_eq!(
        bus.inhibit_shutdown("copal", "x").unwrap_err(),
        SystemdError::Silent(Duration::from_millis(200))
    );
    assert!(began.elapsed() < HANG);
}

#[test]
fn the_system_ends_by_its_target() {
    for (ending, target) in [(Shutdown::PowerOff, "poweroff.target"), (Shutdown::Reboot, "reboot.target")] {
        let Some(daemon) = Daemon::start("end by target") else { return };
        let fake = Fake::start(&daemon);
        daemon.bus().end(ending).unwrap();
        assert_eq!(fake.calls(), [format!("StartUnit {target} replace-irreversibly")]);
    }
}

#[test]
fn without_a_target_the_system_ends_at_once() {
    for (ending, method) in [(Shutdown::PowerOff, "PowerOff"), (Shutdown::Reboot, "Reboot")] {
        let Some(daemon) = Daemon::start("end without target") else { return };
        let fake = Fake::start(&daemon).refusing("StartUnit");
        daemon.bus().end(ending).unwrap();
        assert_eq!((fake.count("StartUnit"), fake.count(method), fake.calls().len()), (1, 1, 2));
        let fake = fake.refusing(method);
        let e = daemon.bus().end(ending).unwrap_err();
        assert!(matches!(&e, SystemdError::Refused(name, _) if name.ends_with("NoSuchUnit")), "{e:?}");
        assert!(e.to_string().contains("no such unit"), "{e}");
        drop(fake);
    }
}

#[test]
fn by_force_no_service_is_stopped() {
    for (ending, method) in [(Shutdown::PowerOff, "PowerOff"), (Shutdown::Reboot, "Reboot")] {
        let Some(daemon) = Daemon::start("end by force") else { return };
        let fake = Fake::start(&daemon);
        daemon.bus().end_by_force(ending).unwrap();
        assert_eq!(fake.calls(), [method]);
        drop(fake.refusing(method));
        assert!(matches!(daemon.bus().end_by_force(ending), Err(SystemdError::Refused(..))));
    }
}

#[test]
fn an_end_without_an_answer_is_not_asked_for_twice() {
    let Some(daemon) = Daemon::start("end without answer") else { return };
    let fake = Fake::start(&daemon).silent_on("StartUnit");
    let began = Instant::now();
    let limit = Duration::from_millis(1500);
    let bus = daemon.bus().with_limit(limit);
    assert_eq!(bus.end(Shutdown::Reboot).unwrap_err(), SystemdError::Silent(limit));
    assert!(began.elapsed() < HANG);
    assert_eq!(fake.calls().len(), 1);
    assert!(matches!(
        Bus::at("unix:path=/nonexistent").end(Shutdown::Reboot),
        Err(SystemdError::Unreachable(_))
    ));
}

#[test]
fn systemd_runs_where_its_folder_is() {
    let root = tempfile::tempdir().unwrap();
    assert!(!systemd::is_running(root.path()));
    std::fs::create_dir_all(root.path().join("run/systemd/system")).unwrap();
    assert!(systemd::is_running(root.path()));
    assert!(!systemd::is_running(Path::new("/nonexistent")));
}
