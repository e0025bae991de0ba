//! Verdicts of the owner.

use copal::error::{Code, Effect};
use copal::rollback::Context;
use copal::rollback::manual::{Back, back_with, mark_good_with};
use copal::slot::Slot;
use copal::state::files::{Marker, boot_id, drop_breadcrumbs};
use copal::state::history::{self, Event, Why};
use copal::state::phase::Phase;

use crate::rig::{Rig, Told, on_trial};

#[test]
fn a_system_on_trial_is_kept_or_given_up() {
    let rig = on_trial(Told::Uboot);
    let (paths, platform) = (rig.paths(), rig.platform());
    mark_good_with(&Context::look(&paths, &platform).unwrap()).unwrap();
    assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy));
    assert_eq!(rig.noted(), ["commit hooks"]);
    mark_good_with(&Context::look(&paths, &platform).unwrap()).unwrap();
    assert_eq!(rig.noted(), ["commit hooks"], "once");
    assert_eq!(told(&rig), [(Event::Committed, Some(Why::Requested), 0, Some("trial".to_owned()))]);

    let rig = on_trial(Told::Uboot);
    let (paths, platform) = (rig.paths(), rig.platform());
    let e = back_with(&Context::look(&paths, &platform).unwrap()).unwrap_err();
    assert_eq!(e.code(), Code::RebootFailed);
    assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack));
    assert_eq!(told(&rig), [(Event::RolledBack, Some(Why::Requested), 0, Some("trial".to_owned()))]);
}

/// Event, reason, attempts and phase of each history record.
fn told(rig: &Rig) -> Vec<(Event, Option<Why>, u32, Option<String>)> {
    history::read(&rig.paths()).into_iter().map(|r| (r.event, r.why, r.attempts, r.phase)).collect()
}

/// A machine on slot A, in whose boot an update of slot B has come to its hooks.
fn updated(told: Told) -> Rig {
    let rig = Rig::new(told, Slot::A);
    let marker = Marker {
        kind: copal::state::phase::Marked::Installing,
        boot_id: boot_id(&rig.paths()).unwrap(),
        target: Slot::B,
        transaction: "t".into(),
    };
    marker.set(&rig.paths()).unwrap();
    drop_breadcrumbs(&rig.paths()).unwrap();
    rig.select(Slot::A, false);
    rig
}

#[test]
fn an_update_that_waits_for_its_reboot_is_undone() {
    for trial in [true, false] {
        let rig = updated(Told::Grub);
        rig.select(Slot::B, trial);
        let (paths, platform) = (rig.paths(), rig.platform());
        assert_eq!(back_with(&Context::look(&paths, &platform).unwrap()).unwrap(), Back::Undone);
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::Healthy));
        assert_eq!(rig.noted(), ["hooks are ended, A selected", "current hooks, A selected"]);
    }
}

#[test]
fn hooks_of_an_update_that_was_killed_are_ended_before_it_is_undone() {
    for told in Told::ALL {
        let rig = updated(told);
        assert_eq!(rig.phase(), Phase::Installing);
        // The last thing that they do before they are ended.
        rig.left_hooks.set((true, true));
        let (paths, platform) = (rig.paths(), rig.platform());
        assert_eq!(back_with(&Context::look(&paths, &platform).unwrap()).unwrap(), Back::Undone);
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::Healthy));
        assert_eq!(rig.noted(), ["hooks are ended, A selected", "current hooks, A selected"]);
    }
}

#[test]
fn with_hooks_that_cannot_be_ended_the_device_rolls_back_and_the_next_boot_handles_them() {
    let rig = updated(Told::Uboot);
    rig.select(Slot::B, true);
    rig.left_hooks.set((true, false));
    let (paths, platform) = (rig.paths(), rig.platform());
    let e = back_with(&Context::look(&paths, &platform).unwrap()).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::EngineUnreachable, Effect::Written), "{e}");
    let text = "slot A is selected again, but hooks of the update may still run and select slot B: the engine is gone";
    assert_eq!(e.message(), text);
    assert!(e.hint().contains("copal rollback now") && e.hint().contains("restart"), "{e}");
    assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::Installing));
    assert_eq!(rig.noted().last().unwrap(), "current hooks, A selected", "all is done that can be");
    assert!(rig.has("rollback-health-breadcrumb") && rig.has("rollback-altboot-breadcrumb"));

    // Once the engine is there again; or with the next boot, in which nobody runs.
    rig.left_hooks.set((false, true));
    assert_eq!(back_with(&Context::look(&paths, &platform).unwrap()).unwrap(), Back::Undone);
    assert_eq!(rig.phase(), Phase::Healthy);
    let rig = updated(Told::Uboot).booted(Slot::A);
    assert_eq!(rig.phase(), Phase::Cleanup);
    let (paths, platform) = (rig.paths(), rig.platform());
    assert_eq!(back_with(&Context::look(&paths, &platform).unwrap()).unwrap(), Back::Undone);
    assert_eq!(rig.noted(), ["current hooks, A selected"]);
}

#[test]
fn a_committed_system_never_rolls_back() {
    let rig = Rig::new(Told::Uboot, Slot::B);
    rig.select(Slot::B, false);
    let (paths, platform) = (rig.paths(), rig.platform());
    let e = back_with(&Context::look(&paths, &platform).unwrap()).unwrap_err();
    assert_eq!((e.code(), e.subject()), (Code::RollbackRefused, Some("healthy")));
    assert_eq!(rig.selection(), (Slot::B, false, 0));
    // And one that the bootloader has left cannot be kept.
    let rig = Rig::new(Told::Uboot, Slot::A);
    rig.select(Slot::B, true);
    rig.count(4);
    let (paths, platform) = (rig.paths(), rig.platform());
    let e = mark_good_with(&Context::look(&paths, &platform).unwrap()).unwrap_err();
    assert_eq!((e.code(), e.subject()), (Code::RollbackRefused, Some("altboot")));
    assert_eq!(rig.selection(), (Slot::B, true, 4));
}
