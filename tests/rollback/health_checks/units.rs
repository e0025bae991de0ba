//! Units that have failed since the update.

use std::time::{Duration, Instant};

use copal::rollback::checks::{self, passed};
use copal::slot::Slot;
use copal::state::files::Trial;
use copal::state::history::CheckResult::{Failed, Passed, Unknown};
use copal::state::history::{Check, CheckResult};
use copal::sys::systemd::Bus;
use copal::update::snapshot;

use super::rig::{Rig, VARIABLES, find};
use crate::kit::dbus::{ACTIVE, Daemon, FAILED, Fake};
use crate::kit::log::logged;
use crate::kit::process::HANG;

const LIST: &str = "/mnt/state/copal/units";

fn rig(units: &[&str]) -> Rig {
    let rig = Rig::healthy();
    std::fs::create_dir_all(rig.root.at("/run/systemd/system")).unwrap();
    rig.put(VARIABLES, "BALENAOS_ROLLBACK_VPNONLINE=0\n");
    keep(&rig, "t1", units);
    is_on_trial(&rig, "t1");
    rig
}

fn keep(rig: &Rig, update: &str, units: &[&str]) {
    let units = units.iter().map(|&u| u.to_owned()).collect();
    snapshot::keep_units(&rig.paths(), update, units).unwrap();
}

fn is_on_trial(rig: &Rig, update: &str) {
    Trial { transaction: update.to_owned(), slot: Slot::B, resets: 1 }.write(&rig.paths()).unwrap();
}

fn run(rig: &Rig, bus: &Bus) -> Vec<Check> {
    checks::run_with(&rig.paths(), &rig.conf, bus, None)
}

fn units(rig: &Rig, bus: &Bus) -> (CheckResult, String) {
    find(&run(rig, bus), "units")
}

#[test]
fn only_those_that_were_active_and_have_failed_count() {
    let Some(daemon) = Daemon::start("failed units") else { return };
    let fake = Fake::start(&daemon)
        .with("a.service", ACTIVE)
        .with("b.service", FAILED)
        .with("new.service", FAILED)
        .with("c.mount", FAILED);
    let rig = rig(&["a.service", "b.service", "c.mount", "gone.service"]);
    let found = run(&rig, &daemon.bus());
    let expected = "failed, and active before the update: b.service, c.mount";
    assert_eq!(find(&found, "units"), (Failed, expected.to_owned()));
    assert_eq!(fake.calls(), ["ListUnitsFiltered failed"]);
    assert!(passed(&found), "it is only reported");

    let required = Rig {
        conf: copal::config::rollback_conf::RollbackConf { units_required: true, ..rig.conf.clone() },
        ..rig
    };
    let found = run(&required, &daemon.bus());
    assert!(found.last().unwrap().required);
    assert!(!passed(&found), "unless the owner wants more");

    for unit in ["b.service", "c.mount"] {
        fake.change(unit, ACTIVE);
    }
    let found = run(&required, &daemon.bus());
    let expected = "of 4 units that were active before, none has failed";
    assert_eq!(find(&found, "units"), (Passed, expected.to_owned()));
    assert!(passed(&found));
}

#[test]
fn a_reason_names_some_and_counts_the_rest() {
    let Some(daemon) = Daemon::start("many units") else { return };
    let names: Vec<String> = (0..20).map(|i| format!("{i:02}.service")).collect();
    let fake = names.iter().fold(Fake::start(&daemon), |fake, name| fake.with(name, FAILED));
    let rig = rig(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (_, reason) = units(&rig, &daemon.bus());
    assert!(reason.ends_with("00.service, 01.service, 02.service, 03.service, 04.service, 05.service, 06.service, 07.service and 12 more"), "{reason}");
    drop(fake);
}

#[test]
fn without_a_list_of_this_update_nothing_is_compared() {
    let Some(daemon) = Daemon::start("no list") else { return };
    let fake = Fake::start(&daemon).with("a.service", FAILED);
    let none = (Unknown, "no list of units was kept before this update".to_owned());
    let mut rig = rig(&["a.service"]);
    assert_eq!(units(&rig, &daemon.bus()).0, Failed);
    // A later update, by shell scripts: the trial has a number of its own.
    is_on_trial(&rig, "t2");
    assert_eq!(units(&rig, &daemon.bus()), none);
    Trial::remove(&rig.paths()).unwrap();
    assert_eq!(units(&rig, &daemon.bus()), none);
    keep(&rig, "t2", &["a.service"]);
    is_on_trial(&rig, "t2");
    assert_eq!(units(&rig, &daemon.bus()).0, Failed);
    std::fs::remove_file(rig.root.at(LIST)).unwrap();
    assert_eq!(units(&rig, &daemon.bus()), none);
    assert_eq!(fake.count("ListUnitsFiltered"), 2);

    let warns = |rig: &Rig| {
        let (found, log) = logged(|| run(rig, &daemon.bus()));
        assert!(passed(&found));
        log.iter().any(|l| l.starts_with("WARN health check units"))
    };
    assert!(!warns(&rig));
    rig.conf.units_required = true;
    assert!(warns(&rig), "the owner who requires it learns that nothing was compared");
}

/// balenaOS's own tests set the VPN's state before the reboot; and a clock may go back.
#[test]
fn a_list_belongs_to_its_update_whatever_the_times_of_files() {
    let Some(daemon) = Daemon::start("edited variables") else { return };
    let _fake = Fake::start(&daemon).with("a.service", FAILED);
    let rig = rig(&["a.service"]);
    rig.age(LIST, 3600);
    rig.put(VARIABLES, "BALENAOS_ROLLBACK_VPNONLINE=1\n");
    assert_eq!(units(&rig, &daemon.bus()).0, Failed);
    std::fs::remove_file(rig.root.at(VARIABLES)).unwrap();
    assert_eq!(units(&rig, &daemon.bus()).0, Failed);
}

#[test]
fn what_systemd_does_not_report_is_unknown_and_passes() {
    let mut rig = rig(&["a.service"]);
    rig.conf.units_required = true;
    let expect = |bus: &Bus, why: &str| {
        let began = Instant::now();
        let found = run(&rig, bus);
        assert!(began.elapsed() < HANG);
        let (result, reason) = find(&found, "units");
        assert_eq!(result, Unknown, "{reason}");
        assert!(
            reason.starts_with("cannot list the failed units: D-Bus: ") && reason.contains(why),
            "{reason}"
        );
        assert!(passed(&found));
    };
    expect(&Bus::at("unix:path=/nonexistent"), "");
    let Some(daemon) = Daemon::start("no answer") else { return };
    expect(&daemon.bus(), "org.freedesktop.systemd1");
    let fake = Fake::start(&daemon).with("a.service", FAILED).refusing("ListUnitsFiltered");
    expect(&daemon.bus(), "NoSuchUnit");
    drop(fake.silent_on("ListUnitsFiltered"));
    expect(&daemon.bus().with_limit(Duration::from_millis(200)), "no answer in 200ms");

    std::fs::remove_dir(rig.root.at("/run/systemd/system")).unwrap();
    assert_eq!(units(&rig, &daemon.bus()), (Unknown, "systemd does not run here".to_owned()));
}

#[test]
fn a_list_that_cannot_be_read_is_unknown() {
    let rig = rig(&[]);
    std::fs::write(rig.root.at(LIST), b"\xff\xfe\n").unwrap();
    let (result, reason) = rig.one("units");
    assert_eq!(result, Unknown);
    assert!(reason.starts_with("cannot read the list of units: "), "{reason}");
}

#[test]
fn units_that_come_and_go_are_not_kept() {
    let rig = rig(&["a.service", "dev-sda.device", "session-1.scope", "user.slice", "x.timer"]);
    assert_eq!(snapshot::kept_units(&rig.paths()).unwrap().unwrap(), ["a.service", "x.timer"]);
}

#[test]
fn states_are_asked_for_by_name() {
    let Some(daemon) = Daemon::start("states of units") else { return };
    let fake =
        Fake::start(&daemon).with("b.service", FAILED).with("a.service", ACTIVE).with("a.mount", FAILED);
    assert_eq!(daemon.bus().failed_units().unwrap(), ["a.mount", "b.service"]);
    assert_eq!(daemon.bus().active_units().unwrap(), ["a.service"]);
    assert_eq!(fake.calls(), ["ListUnitsFiltered failed", "ListUnitsFiltered active"]);
}
