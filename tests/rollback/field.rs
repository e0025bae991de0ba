//! Failures seen in the field on rollbacks, one test each.

use std::cell::Cell;
use std::fs;

use copal::config::rollback_conf::RollbackConf;
use copal::error::Code;
use copal::rollback::{Context, check_version, clear_bootcount, health};
use copal::slot::Slot;
use copal::state::files::{BootfilesRecord, RollbackKind, RollbackRecord};
use copal::state::files::{drop_breadcrumbs, remove_breadcrumbs};
use copal::state::history::{self, Event};
use copal::state::phase::Phase;
use copal::status;

use crate::rig::{Rig, Told, on_trial};

#[test]
fn good_reboots_are_not_counted_as_failed_boots() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.count(1);
        clear_bootcount::run(&rig.paths()).unwrap();
        assert_eq!(rig.selection(), (Slot::B, true, 0), "{told:?}");
        // But where the bootloader has gone back, a count of 0 would send the device into the dead system again.
        let rig = Rig::new(told, Slot::A);
        rig.select(Slot::B, true);
        rig.count(4);
        clear_bootcount::run(&rig.paths()).unwrap();
        assert_eq!(rig.selection(), (Slot::B, true, 4), "{told:?}");
    }
}

#[test]
fn power_cuts_during_the_trial_are_not_failed_boots_three_times() {
    for told in Told::ALL {
        let mut rig = on_trial(told);
        for boot in 1..=4 {
            rig.count(1);
            assert_eq!(count_in_trial(&rig), u32::from(boot > 3), "{told:?}, boot {boot}");
            rig.select(Slot::B, true);
            rig = rig.booted(Slot::B);
        }
    }
}

/// The boot count while the health checks are waited for; nothing is done behind that.
fn count_in_trial(rig: &Rig) -> u32 {
    let seen = Cell::new(None);
    let mut platform = rig.platform();
    platform.wait = Box::new(|_| {
        if seen.get().is_none() {
            seen.set(Some(rig.selection().2));
            // What is no longer on trial gets no verdict: as after a power cut.
            rig.select(Slot::B, false);
        }
    });
    let paths = rig.paths();
    let context = Context::look(&paths, &platform).unwrap();
    health::run_with(&context, &RollbackConf::default()).unwrap();
    seen.get().unwrap()
}

#[test]
fn several_os_release_files_do_not_switch_rollbacks_off() {
    let rig = on_trial(Told::Uboot);
    for (layer, version) in [("old", "1.0.0"), ("older", "0.9.0")] {
        let folder = rig.paths().inactive().join(format!("balena/overlay2/{layer}/diff/etc"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("os-release"), format!("VERSION=\"{version}\"\n")).unwrap();
    }
    assert!(check_version::is_new_enough(&rig.paths()), "none of them is the current hostapp's");
}

#[test]
fn altboot_selects_the_system_that_runs_before_anything_else() {
    for told in Told::ALL {
        let rig = Rig::new(told, Slot::A);
        rig.select(Slot::B, true);
        rig.count(4);
        drop_breadcrumbs(&rig.paths()).unwrap();
        rig.boot_check().unwrap();
        rig.altboot().unwrap_err();
        assert_eq!(rig.noted(), ["current hooks, A selected", "reboot"], "{told:?}");
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack), "{told:?}");
        assert!(rig.has("rollback-altboot-triggered") && !rig.has("rollback-health-triggered"));
        // The other path to it: the service that should have acted has not.
        let rig = Rig::new(told, Slot::A);
        rig.select(Slot::B, true);
        rig.count(4);
        drop_breadcrumbs(&rig.paths()).unwrap();
        rig.health().unwrap_err();
        assert_eq!(rig.clock.get().as_secs(), 900);
        assert_eq!(rig.noted(), ["current hooks, A selected", "reboot"], "{told:?}");
        assert_eq!(rig.selection(), (Slot::A, false, 0), "{told:?}");
        let rig = rig.booted(Slot::A);
        rig.boot_check().unwrap();
        assert_eq!(rig.phase(), Phase::Healthy);
        assert!(rig.has("rollback-altboot-triggered"));
    }
}

#[test]
fn a_missing_breadcrumb_stops_no_unit() {
    for told in Told::ALL {
        let rig = on_trial(told);
        remove_breadcrumbs(&rig.paths()).unwrap();
        rig.boot_check().unwrap();
        assert!(rig.has("rollback-health-breadcrumb") && rig.has("rollback-altboot-breadcrumb"), "trial");
        let rig = Rig::new(told, Slot::A);
        rig.select(Slot::B, true);
        rig.count(4);
        rig.boot_check().unwrap();
        assert!(rig.has("rollback-altboot-breadcrumb"), "altboot");
    }
}

#[test]
fn no_count_is_left_over() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.count(2);
        rig.health().unwrap();
        assert_eq!(rig.selection(), (Slot::B, false, 0), "{told:?}: committed");
        let rig = on_trial(told);
        rig.count(2);
        rig.health.replace(vec![false]);
        rig.health().unwrap_err();
        assert_eq!(rig.selection(), (Slot::A, false, 0), "{told:?}: rolled back");
    }
}

#[test]
fn a_stale_side_file_does_not_undo_the_commit() {
    let rig = on_trial(Told::Uboot);
    let old = "resin_root_part=2\nupgrade_available=1\n";
    // As fatrw names them: the file, a random part, and the digest of the content.
    let digest = md5_of(old.as_bytes());
    fs::write(rig.at(&format!("/mnt/boot/.resinOS_uEnv.txt.abc.{digest}.md5sum")), old).unwrap();
    rig.health().unwrap();
    assert_eq!(rig.selection(), (Slot::B, false, 0));
    let names: Vec<_> = fs::read_dir(rig.at("/mnt/boot")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!names.iter().any(|n| n.to_string_lossy().ends_with(".md5sum")), "{names:?}");
}

fn md5_of(bytes: &[u8]) -> String {
    let mut child = std::process::Command::new("md5sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), bytes).unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    said.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn a_verdict_is_final() {
    // The reboot that was asked for takes its time, or fails; by then the new system is healthy.
    let rig = on_trial(Told::Uboot);
    let mut health = vec![false; 15];
    health.push(true);
    rig.health.replace(health);
    rig.health().unwrap_err();
    assert_eq!(rig.noted().iter().filter(|n| n.starts_with("checks")).count(), 15);
    assert_eq!(rig.noted().last().unwrap(), "reboot");
    assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack));
    // Nor does the program, started once more, commit what was given up.
    rig.health().unwrap();
    assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack));
}

#[test]
fn the_old_system_says_why() {
    let rig = on_trial(Told::Uboot);
    rig.health.replace(vec![false]);
    rig.health().unwrap_err();
    let rig = rig.booted(Slot::A);
    rig.boot_check().unwrap();
    let status = serde_json::to_value(status::read(&rig.paths())).unwrap();
    let last = &status["last_rollback"];
    assert_eq!((&last["event"], &last["attempts"]), (&"rolled-back".into(), &15.into()), "{status}");
    assert_eq!(last["from"]["slot"], "B");
    let engine = last["checks"].as_array().unwrap().iter().find(|c| c["name"] == "engine").unwrap();
    assert_eq!(engine["reason"], "failed 15 of 15 times: the engine does not answer");
    assert!(!last["journal"].as_array().unwrap().is_empty(), "the trial's log, or why there is none");
    assert_eq!(history::read(&rig.paths())[0].event, Event::RolledBack);
}

/// Not only by the bootloader's own decision: a rollback that was cut off between the boot files leads here as well, with files of both.
#[test]
fn a_boot_that_began_with_the_other_systems_boot_files_restarts_once() {
    for kind in [RollbackKind::Health, RollbackKind::Altboot] {
        for told in Told::ALL {
            let rig = Rig::new(told, Slot::A);
            rig.select(Slot::B, true);
            rig.count(4);
            let (transaction, boot_id) = ("t1".to_owned(), String::new());
            let record = RollbackRecord { target: Slot::A, kind, transaction: transaction.clone(), boot_id };
            record.write(&rig.paths()).unwrap();
            BootfilesRecord { transaction, owner: Slot::A }.write(&rig.paths()).unwrap();
            assert_eq!(rig.phase(), Phase::Finishing, "{told:?}");
            let e = rig.boot_check().unwrap_err();
            assert_eq!(e.code(), Code::RebootFailed, "{e}");
            assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack), "{told:?}");
            let rig = rig.booted(Slot::A);
            rig.boot_check().unwrap();
            assert_eq!(rig.phase(), Phase::Healthy, "{told:?}");
        }
    }
}
