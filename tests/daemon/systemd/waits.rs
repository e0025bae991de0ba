//! Waiting for units.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use copal::sys::systemd::{self, Bus, Waited};

use super::{child, is_child};
use crate::kit::dbus::{ACTIVE, Daemon, FAILED, Fake, NOT_FOUND, STARTING, Unit};
use crate::kit::process::HANG;

const UNITS: &[&str] = &["openvpn.service", "resin-device-register.service"];

const LONG: Duration = Duration::from_secs(1000);

/// A wait, and how long it took.
fn timed(bus: &Bus, timeout: Duration) -> (Waited, Duration) {
    let began = Instant::now();
    let waited = bus.wait_for_active(UNITS, timeout);
    (waited, began.elapsed())
}

fn active(name: &str) -> Waited {
    Waited::Active(name.into())
}

#[test]
fn units_that_are_not_there_are_not_waited_for() {
    let Some(daemon) = Daemon::start("unknown units") else { return };
    let fake = Fake::start(&daemon).with(UNITS[0], NOT_FOUND).with(UNITS[1], NOT_FOUND);
    assert_eq!(daemon.bus().wait_for_active(UNITS, LONG), Waited::NoneKnown);
    assert_eq!(fake.count("GetAll"), 2);
    assert_eq!(fake.count("StartUnit"), 0);
    drop(fake.refusing("LoadUnit"));
    assert_eq!(daemon.bus().wait_for_active(UNITS, LONG), Waited::NoneKnown);
    assert_eq!(daemon.bus().wait_for_active(&[], LONG), Waited::NoneKnown);
}

#[test]
fn a_unit_that_is_active_already_is_enough() {
    let Some(daemon) = Daemon::start("active unit") else { return };
    let _fake = Fake::start(&daemon).with(UNITS[0], STARTING).with(UNITS[1], ACTIVE);
    assert_eq!(daemon.bus().wait_for_active(UNITS, LONG), active(UNITS[1]));
}

#[test]
fn a_unit_that_becomes_active_ends_the_wait_without_polling() {
    let Some(daemon) = Daemon::start("unit becomes active") else { return };
    let fake = Fake::start(&daemon).with(UNITS[0], STARTING).with(UNITS[1], NOT_FOUND);
    std::thread::scope(|scope| {
        let bus = daemon.bus();
        let waiting = scope.spawn(move || timed(&bus, LONG));
        fake.wait_for("GetAll", 2);
        // Changes that lead nowhere, among them that of a unit nobody asked for.
        fake.change(UNITS[1], NOT_FOUND);
        fake.change(UNITS[0], Unit { sub: "auto-restart", job: 0, ..STARTING });
        std::thread::sleep(Duration::from_millis(300));
        let told = Instant::now();
        fake.change(UNITS[0], ACTIVE);
        let (waited, took) = waiting.join().unwrap();
        assert_eq!(waited, active(UNITS[0]));
        assert!(told.elapsed() < HANG, "{:?}", told.elapsed());
        assert!(took >= Duration::from_millis(300), "{took:?}");
    });
    // One for each unit, and one at most for each change.
    assert!((3..=5).contains(&fake.count("GetAll")), "{:?}", fake.calls());
}

#[test]
fn a_change_while_the_wait_begins_is_not_lost() {
    for (method, late) in [("Subscribe", false), ("GetAll", false), ("GetAll", true)] {
        let Some(daemon) = Daemon::start("early change") else { return };
        let fake = Fake::start(&daemon)
            .with(UNITS[0], STARTING)
            .with(UNITS[1], NOT_FOUND)
            .changing_during(method, late, UNITS[0], ACTIVE);
        let (waited, took) = timed(&daemon.bus(), LONG);
        assert_eq!(waited, active(UNITS[0]), "{method} {late}");
        assert!(took < HANG, "{method} {late}: {took:?}");
        drop(fake);
    }
}

#[test]
fn units_at_rest_are_not_waited_for() {
    let Some(daemon) = Daemon::start("units at rest") else { return };
    let fake = Fake::start(&daemon)
        .with(UNITS[0], STARTING)
        .with(UNITS[1], Unit { active: "inactive", sub: "dead", ..FAILED });
    std::thread::scope(|scope| {
        let bus = daemon.bus();
        let waiting = scope.spawn(move || bus.wait_for_active(UNITS, LONG));
        fake.wait_for("GetAll", 2);
        fake.change(UNITS[0], FAILED);
        assert_eq!(waiting.join().unwrap(), Waited::NoneComing);
    });
    assert_eq!(daemon.bus().wait_for_active(UNITS, LONG), Waited::NoneComing);
}

#[test]
fn the_timeout_ends_the_wait() {
    let Some(daemon) = Daemon::start("patience") else { return };
    let _fake = Fake::start(&daemon).with(UNITS[0], STARTING).with(UNITS[1], STARTING);
    let (waited, took) = timed(&daemon.bus(), Duration::from_millis(700));
    assert_eq!(waited, Waited::TimedOut);
    assert!((Duration::from_millis(700)..HANG).contains(&took), "{took:?}");
}

#[test]
fn a_bus_that_goes_away_ends_the_wait() {
    let Some(daemon) = Daemon::start("bus goes away") else { return };
    let fake = Fake::start(&daemon).with(UNITS[0], STARTING).with(UNITS[1], STARTING);
    std::thread::scope(|scope| {
        let bus = daemon.bus();
        let waiting = scope.spawn(move || bus.wait_for_active(UNITS, LONG));
        fake.wait_for("GetAll", 2);
        let began = Instant::now();
        daemon.stop();
        let waited = waiting.join().unwrap();
        assert!(matches!(waited, Waited::NoBus(_)), "{waited:?}");
        assert!(began.elapsed() < HANG);
    });
}

#[test]
fn a_peer_that_never_answers_is_given_up() {
    let limit = Duration::from_millis(400);
    for method in ["LoadUnit", "Subscribe", "GetAll"] {
        let Some(daemon) = Daemon::start("silent service") else { return };
        let _fake = Fake::start(&daemon).with(UNITS[0], STARTING).with(UNITS[1], STARTING).silent_on(method);
        let (waited, took) = timed(&daemon.bus().with_limit(limit), LONG);
        assert!(matches!(&waited, Waited::NoBus(why) if why.contains("no answer")), "{method}: {waited:?}");
        assert!((limit..HANG).contains(&took), "{method}: {took:?}");
    }
    // A socket that takes the connection, and nothing more.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bus");
    let _deaf = UnixListener::bind(&path).unwrap();
    let bus = Bus::at(format!("unix:path={}", path.display()));
    let (waited, took) = timed(&bus.with_limit(limit), LONG);
    assert!(matches!(waited, Waited::NoBus(_)), "{waited:?}");
    assert!(took < HANG, "{took:?}");
}

#[test]
fn no_bus_and_a_bus_without_systemd_are_no_reason_to_wait() {
    let (waited, took) = timed(&Bus::at("unix:path=/nonexistent/bus"), LONG);
    assert!(matches!(waited, Waited::NoBus(_)), "{waited:?}");
    assert!(took < HANG, "{took:?}");
    let (waited, _) = timed(&Bus::at("not an address"), LONG);
    assert!(matches!(waited, Waited::NoBus(_)), "{waited:?}");
    let Some(daemon) = Daemon::start("bus without systemd") else { return };
    let (waited, _) = timed(&daemon.bus(), LONG);
    assert!(matches!(waited, Waited::NoBus(_)), "{waited:?}");
}

/// Inside of a runtime of somebody else's, where another one may not be started.
#[test]
fn a_call_from_asynchronous_code_works() {
    let Some(daemon) = Daemon::start("asynchronous caller") else { return };
    let _fake = Fake::start(&daemon).with(UNITS[0], ACTIVE).with(UNITS[1], NOT_FOUND);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let waited = runtime.block_on(async { daemon.bus().wait_for_active(UNITS, LONG) });
    assert_eq!(waited, active(UNITS[0]));
}

#[test]
fn the_environment_names_the_bus() {
    if is_child() {
        assert_eq!(systemd::wait_for_active(UNITS, LONG), active(UNITS[0]));
        return;
    }
    let Some(daemon) = Daemon::start("address in the environment") else { return };
    let fake = Fake::start(&daemon).with(UNITS[0], ACTIVE).with(UNITS[1], NOT_FOUND);
    let status = child(&[], "systemd::waits::the_environment_names_the_bus")
        .env("DBUS_SYSTEM_BUS_ADDRESS", &daemon.address)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fake.count("GetAll"), 2);
}
