//! Whether it fits is known before anything is changed; an undo gets through all the same.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use copal::error::{Code, Effect};
use copal::slot::Slot;
use copal::state::files::{RollbackKind, RollbackRecord};

use super::support::{Device, md5sum_is_content, stamps};
use crate::kit::disk::{Undo, tmpfs};
use crate::kit::needs::{can_run, needs};
use crate::kit::process::HANG;

/// A boot partition of `kib` with a kernel of `old` KiB, and a release with one of `new` KiB.
fn device(kib: u64, old: usize, new: usize) -> (Undo, Device) {
    let device = Device::new(&[], &[("a", "new"), ("zImage", &"n".repeat(new << 10))]);
    let mounted = tmpfs(&device.boot(), kib);
    std::fs::write(device.boot().join("a"), "old").unwrap();
    std::fs::write(device.boot().join("zImage"), "o".repeat(old << 10)).unwrap();
    (mounted, device)
}

#[test]
fn an_update_that_does_not_fit_changes_nothing() {
    needs!(can_run);
    // Both copies have to fit, with 512 KiB left over.
    for (kib, fits) in [(1000 + 1000 + 511, false), (1000 + 1000 + 512 + 64, true)] {
        let (_mounted, device) = device(kib, 1000, 1000);
        let before = stamps(&device.boot());
        let result = device.update();
        if fits {
            result.unwrap();
            assert!(md5sum_is_content(&device.boot()));
            continue;
        }
        let e = result.unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::BootPartitionFull, Effect::Refused), "{e}");
        assert_eq!(stamps(&device.boot()), before);
        assert_eq!(device.record(), None);
    }
}

#[test]
fn what_is_there_already_needs_no_space() {
    needs!(can_run);
    let (_mounted, device) = device(1100, 1000, 1000);
    std::fs::write(device.boot().join("a"), "new").unwrap();
    std::fs::write(device.boot().join("zImage"), "n".repeat(1000 << 10)).unwrap();
    device.update().unwrap();
}

/// A test beside this one that starts a program holds every open file, and its room, for a moment.
fn as_soon_as_it_fits(device: &Device, check: &dyn Fn()) {
    let begun = Instant::now();
    loop {
        let done = device.update();
        check();
        match done {
            Err(e) if e.code() == Code::BootPartitionFull && begun.elapsed() < HANG => {
                std::thread::sleep(Duration::from_millis(20));
            }
            done => return done.unwrap(),
        }
    }
}

/// A leftover of a cut copy takes its room; it is removed before room is counted.
#[test]
fn a_remaining_file_does_not_stop_the_next_update() {
    needs!(can_run);
    let (_mounted, device) = device(1000 + 1000 + 600, 1000, 1000);
    std::fs::write(device.boot().join("CPL00001.TMP"), "x".repeat(900 << 10)).unwrap();
    // Before the room is counted: a refusal changes nothing else.
    as_soon_as_it_fits(&device, &|| assert!(!device.boot().join("CPL00001.TMP").exists()));
}

#[test]
fn what_fsck_has_recovered_makes_way_for_an_update_and_for_nothing_else() {
    needs!(can_run);
    let (_mounted, mut device) = device(1000 + 1000 + 600, 1000, 1000);
    let (name, text) = ("FSCK0000.REC", "r".repeat(900 << 10));
    std::fs::write(device.boot().join(name), &text).unwrap();
    let moved = device.at("/mnt/data/copal/fsck").join(name);

    // It cannot be kept elsewhere: it stays, and is named.
    let e = device.update().unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::BootPartitionFull, Effect::Refused), "{e}");
    assert!(e.message().contains("FSCK0000.REC (921600 bytes)"), "{e}");
    assert!(std::fs::read_to_string(device.boot().join(name)).unwrap() == text);

    // Neither an undo nor a rollback touches it.
    device.mount_data();
    device.undo().unwrap();
    assert!(device.boot().join(name).exists() && !moved.exists());
    std::fs::write(device.boot().join("zImage"), "o".repeat(1000 << 10)).unwrap();
    let record = RollbackRecord {
        target: Slot::B,
        kind: RollbackKind::Health,
        transaction: "t".into(),
        boot_id: "one".into(),
    };
    record.write(&device.paths()).unwrap();
    device.update().unwrap();
    assert!(device.boot().join(name).exists() && !moved.exists());
    RollbackRecord::remove(&device.paths()).unwrap();

    std::fs::write(device.boot().join("zImage"), "o".repeat(1000 << 10)).unwrap();
    as_soon_as_it_fits(&device, &|| assert!(!device.boot().join(name).exists()));
    assert!(std::fs::read_to_string(&moved).unwrap() == text);
    assert!(md5sum_is_content(&device.boot()));
}

#[test]
fn an_undo_overwrites_what_has_no_space_for_a_second_copy() {
    needs!(can_run);
    // Shorter than the existing file, as long, and longer.
    for new in [500, 1000, 1100] {
        let (_mounted, device) = device(1000 + 200, 1000, new);
        let inode = std::fs::metadata(device.boot().join("zImage")).unwrap().ino();
        std::fs::write(device.boot().join("filler"), "x".repeat(60 << 10)).unwrap();
        device.undo().unwrap();
        let after = std::fs::read_to_string(device.boot().join("zImage")).unwrap();
        assert!(after == "n".repeat(new << 10), "{new}: {} bytes", after.len());
        assert_eq!(std::fs::metadata(device.boot().join("zImage")).unwrap().ino(), inode, "{new}");
        assert_eq!(std::fs::read_to_string(device.boot().join("a")).unwrap(), "new");
        assert!(md5sum_is_content(&device.boot()));
    }
}

/// Where it can neither be copied nor overwritten, the old file stays whole and everything else is put back.
#[test]
fn an_undo_without_any_space_spoils_nothing() {
    needs!(can_run);
    let (_mounted, device) = device(1000 + 200, 1000, 2000);
    let e = device.undo().unwrap_err();
    assert_eq!(e.code(), Code::BootPartitionFull, "{e}");
    assert!(std::fs::read_to_string(device.boot().join("zImage")).unwrap() == "o".repeat(1000 << 10));
    assert_eq!(std::fs::read_to_string(device.boot().join("a")).unwrap(), "new");
    assert!(md5sum_is_content(&device.boot()));
}

/// What found no room at first finds it once smaller files are back.
#[test]
fn an_undo_tries_again_after_space_was_freed() {
    needs!(can_run);
    let (_mounted, device) = device(1000 + 200, 1000, 100);
    let text = "f".repeat(600 << 10);
    device.release(&[("first", &text), ("zImage", "small")]);
    device.undo().unwrap();
    assert!(std::fs::read_to_string(device.boot().join("first")).unwrap() == text);
}

/// A rollback runs the old release's hooks as for an update; without space for both, it succeeds nevertheless.
#[test]
fn a_rollback_is_an_undo_for_the_slot_it_leads_to() {
    needs!(can_run);
    let (_mounted, device) = device(1000 + 200, 1000, 1000);
    let before = stamps(&device.boot());
    let record = |target| RollbackRecord {
        target,
        kind: RollbackKind::Health,
        transaction: "t".into(),
        boot_id: "one".into(),
    };
    // To the running slot, the other one's boot files do not go.
    record(Slot::A).write(&device.paths()).unwrap();
    assert_eq!(device.update().unwrap_err().code(), Code::BootPartitionFull);
    assert_eq!(stamps(&device.boot()), before);
    record(Slot::B).write(&device.paths()).unwrap();
    device.update().unwrap();
    let now = std::fs::read_to_string(device.boot().join("zImage")).unwrap();
    assert!(now == "n".repeat(1000 << 10));
    assert!(md5sum_is_content(&device.boot()));
    assert_eq!(device.record().unwrap().owner, Slot::B);

    // One that nobody can read counts for nothing.
    std::fs::write(device.at("/mnt/state/copal/rollback"), "{").unwrap();
    device.release(&[("zImage", &"o".repeat(1000 << 10))]);
    assert_eq!(device.update().unwrap_err().code(), Code::BootPartitionFull);
}
