//! What becomes of a trial.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use copal::boot_state;
use copal::error::Code;
use copal::job::lock::{Lock, Work};
use copal::slot::Slot;
use copal::state::files::{CommitDue, RollbackRecord, Trial};
use copal::state::history::{self, CheckResult, Event, Why};
use copal::state::phase::Phase;
use copal::sys::crash_point;

use crate::kit::process::HANG;
use crate::rig::{Told, on_trial};

const LEFT: [&str; 5] = [
    "rollback-health-breadcrumb",
    "rollback-altboot-breadcrumb",
    "rollback-health-variables",
    "copal/trial",
    "copal/commit-due",
];

#[test]
fn a_healthy_system_is_committed() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.count(1);
        rig.health().unwrap();
        assert_eq!(rig.noted(), ["checks pass", "commit hooks"], "{told:?}");
        assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy), "{told:?}");
        for name in LEFT {
            assert!(!rig.has(name), "{told:?}: {name}");
        }
        let last = history::read(&rig.paths()).pop().unwrap();
        assert_eq!((last.event, last.attempts, last.resets), (Event::Committed, 1, 1), "{told:?}");
        assert_eq!(last.transaction, "t1");
    }
}

/// The bootloader has counted and the verdict has been written since the update summed up the boot partition.
#[test]
fn a_verdict_leaves_a_fingerprint_that_holds() {
    for told in Told::ALL {
        for good in [true, false] {
            let rig = on_trial(told);
            let boot = rig.at("/mnt/boot");
            let sum = |line: &str| tool(&boot, line);
            sum(
                "find . -type f ! -name balenaos.fingerprint | sort | sed 's,^[.]/,,' | xargs md5sum >balenaos.fingerprint",
            );
            sum("md5sum --quiet -c balenaos.fingerprint");
            rig.count(1);
            rig.health.replace(vec![good]);
            drop(rig.health());
            sum("md5sum --quiet -c balenaos.fingerprint");
            if !good {
                // The hooks of a system that is back may sum up before they select.
                let rig = rig.booted(Slot::A);
                rig.boot_check().unwrap();
                tool(&rig.at("/mnt/boot"), "md5sum --quiet -c balenaos.fingerprint");
            }
        }
    }
}

fn tool(folder: &Path, line: &str) {
    let out = Command::new("sh").args(["-ec", line]).current_dir(folder).output().unwrap();
    assert!(out.status.success(), "{line}: {out:?}");
}

#[test]
fn a_trial_of_fifteen_minutes_ends_with_a_rollback() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.health.replace(vec![false]);
        let began = Instant::now();
        let e = rig.health().unwrap_err();
        assert_eq!(e.code(), Code::RebootFailed, "{e}");
        assert_eq!(rig.clock.get(), Duration::from_secs(15 * 60), "{told:?}");
        assert!(began.elapsed() < HANG);
        let mut expected = vec!["checks fail".to_owned(); 15];
        expected.extend(["old hooks, B selected on trial".to_owned(), "reboot".to_owned()]);
        assert_eq!(rig.noted(), expected, "{told:?}");
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack), "{told:?}");
        assert!(rig.has("rollback-health-triggered") && !rig.has("rollback-health-failed"));
        assert!(!rig.has("rollback-health-breadcrumb") && !rig.has("rollback-altboot-breadcrumb"));
        // The old system finds the record, and completes the rollback.
        let rig = rig.booted(Slot::A);
        assert_eq!(rig.phase(), Phase::Finishing);
        rig.boot_check().unwrap();
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::Healthy), "{told:?}");
        assert!(rig.has("rollback-health-triggered"), "the owner is still told");
        assert_eq!(RollbackRecord::read(&rig.paths()).unwrap(), None);
    }
}

#[test]
fn a_record_has_what_was_observed_before_the_verdict() {
    for (healthy, event, attempts) in [(true, Event::Committed, 1), (false, Event::RolledBack, 15)] {
        let rig = on_trial(Told::Uboot);
        // All resets are used: the count of the bootloader is kept.
        Trial { transaction: "t1".into(), slot: Slot::B, resets: 3 }.write(&rig.paths()).unwrap();
        rig.count(2);
        rig.health.replace(vec![healthy]);
        assert_eq!(rig.health().is_ok(), healthy);
        let told: Vec<_> = history::read(&rig.paths())
            .into_iter()
            .map(|r| (r.event, r.why, r.attempts, r.phase, r.bootcount))
            .collect();
        assert_eq!(told, [(event, Some(Why::Checks), attempts, Some("trial".to_owned()), 2)]);
    }
}

#[test]
fn the_last_attempt_may_be_the_one_that_passes() {
    let rig = on_trial(Told::Uboot);
    let mut health = vec![false; 14];
    health.push(true);
    rig.health.replace(health);
    rig.health().unwrap();
    assert_eq!(rig.phase(), Phase::Healthy);
    let last = history::read(&rig.paths()).pop().unwrap();
    assert_eq!((last.event, last.why, last.attempts), (Event::Committed, Some(Why::Checks), 15));
    let engine = last.checks.iter().find(|c| c.name == "engine").unwrap();
    assert_eq!((engine.result, engine.reason.as_str()), (CheckResult::Passed, "failed 14 of 15 times"));
}

#[test]
fn a_mount_point_that_is_no_text_stops_no_verdict() {
    let mut rig = on_trial(Told::Uboot);
    rig.tree.mount_at_bytes("8:1", b"/run/media/caf\xe9");
    rig.health().unwrap();
    assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy));
}

#[test]
fn without_old_hooks_the_boot_files_are_restored_by_themselves() {
    let rig = on_trial(Told::Grub);
    rig.health.replace(vec![false]);
    rig.old_hooks.set(false);
    rig.health().unwrap_err();
    assert_eq!(rig.noted()[15..], ["old boot files", "reboot"]);
    assert_eq!(rig.selection(), (Slot::A, false, 0));
    assert!(rig.has("rollback-health-triggered"));
}

#[test]
fn without_old_boot_files_the_selection_stays_and_the_bootloader_ends_it() {
    let rig = on_trial(Told::Uboot);
    rig.health.replace(vec![false]);
    rig.old_hooks.set(false);
    rig.old_boot_files.set(false);
    rig.health().unwrap_err();
    assert_eq!(rig.noted().last().unwrap(), "reboot");
    assert_eq!(rig.selection().0, Slot::B);
    assert!(rig.selection().1, "the bootloader counts, and comes to the old system by itself");
    assert!(rig.has("rollback-health-failed") && !rig.has("rollback-health-triggered"));
    let told: Vec<_> = history::read(&rig.paths()).iter().map(|r| r.event).collect();
    assert_eq!(told, [Event::RolledBack, Event::RollbackFailed]);
    // Again at the next boot, without tests, whatever the health is by then, and without another long story.
    let rig = rig.booted(Slot::B);
    rig.old_hooks.set(false);
    rig.old_boot_files.set(false);
    assert_eq!(rig.phase(), Phase::RollingBack);
    rig.boot_check().unwrap_err();
    assert_eq!(rig.noted(), ["old boot files", "reboot"]);
    assert_eq!(history::read(&rig.paths()).iter().filter(|r| r.event == Event::RolledBack).count(), 1);
    // Until the bootloader has had enough.
    let rig = rig.booted(Slot::A);
    rig.boot_check().unwrap();
    assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::Healthy));
}

#[test]
fn a_previous_system_that_is_too_old_means_no_trial() {
    let rig = on_trial(Told::Uboot);
    rig.too_old.set(true);
    let e = rig.health().unwrap_err();
    assert_eq!(e.code(), Code::PreviousTooOld);
    assert_eq!(history::read(&rig.paths()).pop().unwrap().why, Some(Why::TooOld));
    assert_eq!((rig.noted(), rig.phase()), (vec!["commit hooks".to_owned()], Phase::Healthy));
    assert_eq!(rig.selection(), (Slot::B, false, 0));
}

#[test]
fn a_verdict_on_what_is_no_longer_on_trial_is_not_spoken() {
    // The running system was committed, or another update has begun, while the checks were waited for.
    let rig = on_trial(Told::Uboot);
    rig.health.replace(vec![false]);
    let mut platform = rig.platform();
    platform.wait = Box::new(|_| rig.select(Slot::B, false));
    let paths = rig.paths();
    let context = copal::rollback::Context::look(&paths, &platform).unwrap();
    copal::rollback::health::run_with(&context, &Default::default()).unwrap();
    assert!(!rig.noted().iter().any(|n| n == "reboot" || n.contains("hooks")), "{:?}", rig.noted());
    assert_eq!(rig.selection(), (Slot::B, false, 0));
}

#[test]
fn commit_hooks_that_were_cut_off_run_when_the_engine_is_there() {
    let rig = on_trial(Told::Uboot);
    rig.select(Slot::B, false);
    copal::rollback::stop::run(&rig.paths(), false).unwrap();
    CommitDue { transaction: "t1".into(), slot: Slot::B, again: false }.write(&rig.paths()).unwrap();
    rig.boot_check().unwrap();
    assert_eq!((rig.noted().len(), rig.has("copal/commit-due")), (0, true), "too early for the engine");
    let platform = rig.platform();
    let paths = rig.paths();
    let context = copal::rollback::Context::look(&paths, &platform).unwrap();
    copal::rollback::commit_hooks::run_with(&context).unwrap();
    assert_eq!((rig.noted(), rig.has("copal/commit-due")), (vec!["commit hooks".to_owned()], false));
    // One that could not do its work runs again at the next start, until it can.
    for again in [true, false] {
        CommitDue { transaction: "t1".into(), slot: Slot::B, again: true }.write(&paths).unwrap();
        let mut platform = rig.platform();
        let of_hook = rig.paths();
        platform.commit_hooks = Box::new(move || {
            let due = CommitDue::read(&of_hook).unwrap().unwrap();
            assert!(!due.again, "an earlier request is settled");
            CommitDue { again, ..due }.write(&of_hook)
        });
        let context = copal::rollback::Context::look(&paths, &platform).unwrap();
        copal::rollback::commit_hooks::run_with(&context).unwrap();
        assert_eq!(rig.has("copal/commit-due"), again);
    }
    // Those of another slot are nobody's any more.
    CommitDue { transaction: "t1".into(), slot: Slot::A, again: false }.write(&paths).unwrap();
    copal::rollback::commit_hooks::run_with(&context).unwrap();
    assert_eq!((rig.noted().len(), rig.has("copal/commit-due")), (1, false));
}

#[test]
fn boot_files_that_differ_are_deployed_again_with_the_commit() {
    let rig = on_trial(Told::Uboot);
    fs::write(rig.at("/mnt/boot/board.dtb"), "of the old system").unwrap();
    rig.health().unwrap();
    assert_eq!(fs::read_to_string(rig.at("/mnt/boot/board.dtb")).unwrap(), "of B");
    assert!(!rig.has("copal/bootfiles"));
}

/// Without the record a loop of restarts would never end.
#[test]
fn a_count_of_resets_that_cannot_be_written_keeps_the_boot_count() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.count(2);
        rig.health.replace(vec![false]);
        rig.old_hooks.set(false);
        rig.old_boot_files.set(false);
        let full = crash_point::arm(|_, path| {
            let is_it = path.ends_with("copal/trial");
            if is_it { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        rig.health().unwrap_err();
        drop(full);
        assert_eq!(rig.selection(), (Slot::B, true, 2), "{told:?}: the count goes on");
    }
}

/// A power cut between the two must not cost the commit hooks.
#[test]
fn commit_hooks_are_due_before_the_selection_is_for_good() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.count(1);
        // At each change: whether the hooks are due, once the selection is no trial any more.
        let (paths, due) = (rig.paths(), Rc::new(RefCell::new(Vec::new())));
        let seen = due.clone();
        let armed = crash_point::arm(move |_, _| {
            let selection = boot_state::detect(&paths).and_then(|backend| backend.read());
            if selection.is_ok_and(|s| !s.upgrade_available) {
                seen.borrow_mut().push(CommitDue::read(&paths).unwrap().is_some());
            }
            Ok(())
        });
        rig.health().unwrap();
        drop(armed);
        assert_eq!(due.borrow().first(), Some(&true), "{told:?}");
    }
}

#[test]
fn damaged_records_are_removed_at_boot_and_block_nothing() {
    let rig = on_trial(Told::Uboot);
    for name in ["rollback", "bootfiles"] {
        fs::write(rig.paths().state_files().join(name), "{").unwrap();
    }
    assert!(copal::state::phase::observe(&rig.paths(), &rig.roots()).is_err());
    rig.boot_check().unwrap();
    assert_eq!(rig.phase(), Phase::Trial);
    rig.health().unwrap();
    assert_eq!(rig.phase(), Phase::Healthy);
    // A count of resets that cannot be read may have been used up.
    let rig = on_trial(Told::Uboot);
    fs::write(rig.paths().state_files().join("trial"), "{").unwrap();
    rig.count(2);
    rig.health.replace(vec![false]);
    rig.old_hooks.set(false);
    rig.old_boot_files.set(false);
    rig.health().unwrap_err();
    assert_eq!(rig.selection(), (Slot::B, true, 2), "the count goes on");
    assert!(Trial::read(&rig.paths()).is_err());
}

#[test]
fn a_system_stays_where_the_old_one_cannot_be_mounted() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.health.replace(vec![false]);
        rig.old_hooks.set(false);
        rig.old_boot_files.set(false);
        rig.old_is_there.set(false);
        let e = rig.health().unwrap_err();
        assert!(e.message().contains("boot file fails"), "{e}");
        assert!(!rig.noted().iter().any(|n| n == "reboot"), "nothing is there to boot");
        assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy), "{told:?}");
        assert!(rig.has("rollback-health-failed"));
        let rig = rig.booted(Slot::B);
        rig.boot_check().unwrap();
        assert_eq!((rig.noted().len(), rig.phase()), (0, Phase::Healthy), "{told:?}");
        assert!(rig.has("rollback-health-failed"), "{told:?}: the owner is told at the next boot, too");
    }
}

#[test]
fn a_rollback_that_was_stopped_is_not_repeated() {
    let rig = on_trial(Told::Uboot);
    rig.health.replace(vec![false]);
    rig.old_hooks.set(false);
    rig.old_boot_files.set(false);
    rig.health().unwrap_err();
    let rig = rig.booted(Slot::B);
    assert_eq!(rig.phase(), Phase::RollingBack);
    let e = copal::rollback::stop::run(&rig.paths(), false).unwrap_err();
    assert_eq!(e.code(), Code::StopRefused);
    copal::rollback::stop::run(&rig.paths(), true).unwrap();
    rig.boot_check().unwrap();
    assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy));
    assert_eq!(rig.noted().len(), 0);
}

#[test]
fn hooks_that_flipped_and_then_failed_leave_no_trial_of_the_old_system() {
    let rig = on_trial(Told::Grub);
    rig.health.replace(vec![false]);
    rig.old_boot_files.set(false);
    let mut platform = rig.platform();
    platform.old_hooks = Box::new(|| {
        rig.select(Slot::A, true);
        Err(copal::error::Error::new(Code::HookFailed, "a later hook fails"))
    });
    let paths = rig.paths();
    let context = copal::rollback::Context::look(&paths, &platform).unwrap();
    copal::rollback::health::run_with(&context, &Default::default()).unwrap_err();
    assert_eq!(rig.selection(), (Slot::A, false, 0));
    assert!(rig.has("rollback-health-failed"));
}

#[test]
fn records_that_a_shell_release_has_left_are_not_taken_for_those_of_the_next_update() {
    let hook = |rig: &crate::rig::Rig| {
        let builtin = copal::hooks::builtin::BUILTINS.iter().find(|b| b.names.contains(&"80-rollback"));
        let context =
            copal::hooks::Context { paths: rig.paths(), during_update: true, called: "80-rollback".into() };
        (builtin.unwrap().run)(&context).unwrap();
    };
    for target in [Slot::A, Slot::B] {
        let rig = crate::rig::Rig::new(Told::Uboot, Slot::A);
        let kind = copal::state::files::RollbackKind::Health;
        let transaction = "t0".to_owned();
        let record = RollbackRecord { target, kind, transaction, boot_id: "an earlier one".into() };
        record.write(&rig.paths()).unwrap();
        Trial { transaction: "t0".into(), slot: Slot::B, resets: 3 }.write(&rig.paths()).unwrap();
        hook(&rig);
        assert!(!rig.has("copal/rollback") && !rig.has("copal/trial"), "{target}");
        // But the hooks of the old system run during a rollback, too.
        RollbackRecord { target: Slot::B, boot_id: "this".into(), ..record }.write(&rig.paths()).unwrap();
        hook(&rig);
        assert!(rig.has("copal/rollback"), "{target}");
    }
}

#[test]
fn a_verdict_waits_for_the_holder_of_the_lock() {
    let rig = on_trial(Told::Uboot);
    let lock = RefCell::new(None);
    let waited = std::cell::Cell::new(0);
    let mut platform = rig.platform();
    platform.wait = Box::new(|_| {
        waited.set(waited.get() + 1);
        match waited.get() {
            1 => {
                let taken = Lock::take(&rig.paths(), "hostapp-update", Work::Update).unwrap();
                *lock.borrow_mut() = Some(taken);
            }
            3 => drop(lock.borrow_mut().take()),
            _ => {}
        }
    });
    let paths = rig.paths();
    let context = copal::rollback::Context::look(&paths, &platform).unwrap();
    copal::rollback::health::run_with(&context, &Default::default()).unwrap();
    assert_eq!((waited.get(), rig.phase()), (3, Phase::Healthy));
}

#[test]
fn the_old_bootloader_is_set_in_its_own_way_and_in_no_other() {
    // The new release has U-Boot, the old one the balena bootloader, as its hooks know.
    let rig = on_trial(Told::Uboot);
    rig.health.replace(vec![false]);
    let mut platform = rig.platform();
    platform.old_hooks = Box::new(|| {
        let builtins = copal::hooks::builtin::BUILTINS;
        let hook = builtins.iter().find(|b| b.names.contains(&"99-balena-bootloader")).unwrap();
        (hook.run)(&copal::hooks::Context {
            paths: rig.paths(),
            during_update: true,
            called: "99-balena-bootloader".into(),
        })
    });
    let paths = rig.paths();
    let context = copal::rollback::Context::look(&paths, &platform).unwrap();
    copal::rollback::health::run_with(&context, &Default::default()).unwrap_err();
    assert_eq!(rig.selection(), (Slot::A, false, 0));
    let env = fs::read_to_string(rig.at("/mnt/boot/bootenv")).unwrap();
    assert!(env.contains("resin_root_part=A\n") && env.contains("upgrade_available=0\n"), "{env}");
    assert!(
        !rig.at("/mnt/boot/resinOS_uEnv.txt").exists(),
        "it would be read first, by copal, and by nobody else"
    );
}
