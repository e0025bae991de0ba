//! The other root is not mounted: its file system is damaged, or its partition has gone.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use copal::error::{Code, Effect};
use copal::rollback::manual::back_with;
use copal::rollback::{Context, altboot, health};
use copal::slot::Slot;
use copal::state::files::{BootfilesRecord, Flag, RollbackRecord};
use copal::state::history::{self, Event};
use copal::state::phase::Phase;
use copal::status;

use crate::rig::{Rig, Told, on_trial};

/// Slot B runs for good, with nothing left to do, and its owner is told why.
#[track_caller]
fn stays(rig: &Rig) {
    assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy), "{:?}", rig.told);
    for name in ["breadcrumb", "variables", "triggered"].map(|n| format!("rollback-health-{n}")) {
        assert!(!rig.has(&name), "{:?}: {name}", rig.told);
    }
    for name in ["rollback-altboot-breadcrumb", "copal/trial", "copal/rollback", "copal/bootfiles"] {
        assert!(!rig.has(name), "{:?}: {name}", rig.told);
    }
    let status = status::read(&rig.paths());
    assert_eq!((status.flags, status.problems.len()), (vec![Flag::HealthFailed.name()], 0));
    assert_eq!((status.next, status.slots.len()), (Some(Slot::B), 1));
    let last = status.last_rollback.unwrap();
    assert_eq!((last.event, last.error.unwrap().code()), (Event::RollbackFailed, Code::SlotUnknown));
}

#[test]
fn a_trial_ends_all_the_same() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.health.replace(vec![false]);
        rig.lose_other();
        let e = rig.health().unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::SlotUnknown, Effect::Written), "{e}");
        assert_eq!(
            rig.noted(),
            vec!["checks fail"; 15],
            "{told:?}: nothing else is run, and nothing reboots"
        );
        stays(&rig);
        let told: Vec<_> =
            history::read(&rig.paths()).into_iter().map(|r| (r.event, r.transaction)).collect();
        assert_eq!(told, [(Event::RolledBack, "t1".into()), (Event::RollbackFailed, "t1".into())]);
        let rig = rig.booted(Slot::B);
        rig.lose_other();
        rig.boot_check().unwrap();
        rig.health().unwrap();
        assert_eq!(rig.noted().len(), 0);
        stays(&rig);
    }
}

#[test]
fn a_healthy_system_is_committed_as_ever() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.lose_other();
        rig.boot_check().unwrap();
        rig.health().unwrap();
        assert_eq!(rig.noted(), ["checks pass", "commit hooks"], "{told:?}");
        assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy), "{told:?}");
        assert!(!rig.has("rollback-health-failed"));
    }
}

#[test]
fn a_rollback_that_was_cut_off_ends_at_the_next_boot() {
    for told in Told::ALL {
        // The bootloader may still have the new system on trial, or have gone on with it.
        for gone_on in [false, true] {
            let rig = on_trial(told);
            rig.health.replace(vec![false]);
            rig.old_hooks.set(false);
            rig.old_boot_files.set(false);
            rig.health().unwrap_err();
            let rig = rig.booted(Slot::B);
            if gone_on {
                rig.select(Slot::A, false);
            }
            rig.lose_other();
            assert_eq!(rig.phase(), Phase::RollingBack);
            let e = rig.boot_check().unwrap_err();
            assert_eq!(e.code(), Code::SlotUnknown, "{e}");
            assert_eq!(rig.noted().len(), 0, "{told:?}: nothing is run, and nothing reboots");
            stays(&rig);
            let history = history::read(&rig.paths());
            assert!(history.iter().all(|r| r.transaction == "t1"), "{history:?}");
            assert_eq!(history.iter().filter(|r| r.event == Event::RolledBack).count(), 1);
        }
    }
}

#[test]
fn a_manual_run_writes_nothing_and_the_trial_goes_on() {
    for told in Told::ALL {
        let rig = on_trial(told);
        let table = rig.lose_other();
        let (paths, platform) = (rig.paths(), rig.platform());
        let e = back_with(&Context::look(&paths, &platform).unwrap()).unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::SlotUnknown, Effect::Refused), "{e}");
        assert_eq!((rig.selection(), rig.phase()), ((Slot::B, true, 0), Phase::Trial), "{told:?}");
        assert_eq!((rig.noted().len(), history::read(&paths).len()), (0, 0));
        assert!(rig.has("rollback-health-breadcrumb") && rig.has("copal/trial"));
        assert!(!rig.has("copal/rollback") && !rig.has("rollback-health-failed"));
        // And once it is there.
        rig.mounts(&table);
        back_with(&Context::look(&paths, &platform).unwrap()).unwrap_err();
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack), "{told:?}");
    }
}

/// Minutes pass between the start of a trial and its verdict.
#[test]
fn one_that_was_late_is_gone_back_to() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.health.replace(vec![false]);
        let table = rig.lose_other();
        let mut platform = rig.platform();
        platform.wait = Box::new(|_| rig.mounts(&table));
        let paths = rig.paths();
        let e =
            health::run_with(&Context::look(&paths, &platform).unwrap(), &Default::default()).unwrap_err();
        assert_eq!(e.code(), Code::RebootFailed, "{e}");
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack), "{told:?}");
        assert!(rig.has("rollback-health-triggered") && !rig.has("rollback-health-failed"));
        assert!(RollbackRecord::read(&paths).unwrap().is_some_and(|r| r.target == Slot::A));
    }
}

#[test]
fn boot_files_that_could_not_be_put_back_are_tried_again() {
    let rig = on_trial(Told::Uboot);
    rig.health.replace(vec![false]);
    rig.lose_other();
    BootfilesRecord { transaction: "t1".into(), owner: Slot::B }.write(&rig.paths()).unwrap();
    let hook = rig.at("/etc/hostapp-update-hooks.d/1-bootfiles");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    rig.health().unwrap_err();
    assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy));
    assert!(rig.has("copal/bootfiles"));
    fs::write(&hook, "#!/bin/sh\n").unwrap();
    rig.boot_check().unwrap();
    stays(&rig);
}

/// A new system whose root is damaged does not boot: the old one follows the bootloader.
#[test]
fn the_bootloader_is_followed_and_a_cut_noticed() {
    for told in Told::ALL {
        let rig = Rig::new(told, Slot::A);
        rig.select(Slot::B, true);
        rig.count(4);
        rig.lose_other();
        rig.boot_check().unwrap();
        assert_eq!((rig.phase(), rig.has("rollback-altboot-breadcrumb")), (Phase::Altboot, true), "{told:?}");
        let paths = rig.paths();
        let mut platform = rig.platform();
        platform.current_hooks = Box::new(|| {
            let record = BootfilesRecord::read(&paths).unwrap();
            assert_eq!(
                record.map(|r| r.owner),
                Some(Slot::B),
                "{told:?}: those of the other slot are in place"
            );
            Ok(())
        });
        let e = altboot::run_with(&Context::look(&paths, &platform).unwrap()).unwrap_err();
        assert_eq!(e.code(), Code::RebootFailed, "{e}");
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack), "{told:?}");
        assert!(rig.has("rollback-altboot-triggered") && !rig.has("copal/bootfiles"));
        drop(platform);
        let rig = rig.booted(Slot::A);
        rig.lose_other();
        rig.boot_check().unwrap();
        assert_eq!(rig.phase(), Phase::Healthy, "{told:?}");
    }
}
