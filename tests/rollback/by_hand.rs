//! Verdicts of the owner.

use copal::error::Code;
use copal::history::{self, Event, Why};
use copal::phase::Phase;
use copal::phase::files::{Marker, boot_id, drop_breadcrumbs};
use copal::rollback::Ground;
use copal::rollback::by_hand::{Back, back_with, mark_good_with};
use copal::slot::Slot;

use crate::rig::{Rig, Told, on_trial};

#[test]
fn a_system_on_trial_is_kept_or_given_up() {
    let rig = on_trial(Told::Uboot);
    let (paths, outside) = (rig.paths(), rig.outside());
    mark_good_with(&Ground::look(&paths, &outside).unwrap()).unwrap();
    assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy));
    assert_eq!(rig.noted(), ["commit hooks"]);
    mark_good_with(&Ground::look(&paths, &outside).unwrap()).unwrap();
    assert_eq!(rig.noted(), ["commit hooks"], "once");
    let told: Vec<_> = history::read(&paths).into_iter().map(|r| (r.event, r.why, r.attempts)).collect();
    assert_eq!(told, [(Event::Committed, Some(Why::Asked), 0)]);

    let rig = on_trial(Told::Uboot);
    let (paths, outside) = (rig.paths(), rig.outside());
    let e = back_with(&Ground::look(&paths, &outside).unwrap()).unwrap_err();
    assert_eq!(e.code(), Code::RebootFailed);
    assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack));
    let told: Vec<_> = history::read(&paths).into_iter().map(|r| (r.event, r.why, r.attempts)).collect();
    assert_eq!(told, [(Event::RolledBack, Some(Why::Asked), 0)]);
}

#[test]
fn an_update_that_waits_for_its_reboot_is_undone() {
    for trial in [true, false] {
        let rig = Rig::new(Told::Grub, Slot::A);
        let marker = Marker {
            kind: copal::phase::Marked::Installing,
            boot_id: boot_id(&rig.paths()).unwrap(),
            target: Slot::B,
            transaction: "t".into(),
        };
        marker.set(&rig.paths()).unwrap();
        drop_breadcrumbs(&rig.paths()).unwrap();
        rig.select(Slot::B, trial);
        let (paths, outside) = (rig.paths(), rig.outside());
        assert_eq!(back_with(&Ground::look(&paths, &outside).unwrap()).unwrap(), Back::Undone);
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::Healthy));
        assert_eq!(rig.noted(), ["current hooks, A selected"]);
    }
}

#[test]
fn a_committed_system_never_goes_back() {
    let rig = Rig::new(Told::Uboot, Slot::B);
    rig.select(Slot::B, false);
    let (paths, outside) = (rig.paths(), rig.outside());
    let e = back_with(&Ground::look(&paths, &outside).unwrap()).unwrap_err();
    assert_eq!((e.code(), e.subject()), (Code::RollbackRefused, Some("healthy")));
    assert_eq!(rig.selection(), (Slot::B, false, 0));
    // And one that the bootloader has left cannot be kept.
    let rig = Rig::new(Told::Uboot, Slot::A);
    rig.select(Slot::B, true);
    rig.count(4);
    let (paths, outside) = (rig.paths(), rig.outside());
    let e = mark_good_with(&Ground::look(&paths, &outside).unwrap()).unwrap_err();
    assert_eq!((e.code(), e.subject()), (Code::RollbackRefused, Some("altboot")));
    assert_eq!(rig.selection(), (Slot::B, true, 4));
}
