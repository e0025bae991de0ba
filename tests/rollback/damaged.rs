//! A file that the bootloader cannot read, or not to its end: it takes its default root, and the check at boot repairs the file to what
//! phase and records say.

use std::fs;
use std::path::PathBuf;

use copal::boot_state;
use copal::rollback::clear_bootcount;
use copal::slot::Slot;
use copal::state::files::{Marker, RollbackKind, RollbackRecord, boot_id};
use copal::state::history::{self, Event, Record};
use copal::state::phase::{Marked, Phase};

use crate::rig::{Rig, Told, on_trial};

const HEADER: usize = "# GRUB Environment Block\n".len();

fn file(rig: &Rig) -> PathBuf {
    boot_state::detect(&rig.paths()).unwrap().file().to_owned()
}

/// One byte of the first line; for U-Boot, a line at which it stops, or line ends of Windows.
fn damage(rig: &Rig, byte: usize) {
    let mut bytes = fs::read(file(rig)).unwrap();
    match rig.told {
        Told::Uboot if byte == 1 => {
            bytes = String::from_utf8(bytes).unwrap().replace('\n', "\r\n").into_bytes();
        }
        Told::Uboot => drop(bytes.splice(0..0, *b"=x\n")),
        Told::Grub | Told::Balena => bytes[byte] ^= 0x40,
    }
    fs::write(file(rig), bytes).unwrap();
}

/// What the bootloader reads now is all of a selection.
fn is_sound(rig: &Rig) -> bool {
    let state = boot_state::detect(&rig.paths()).unwrap().read().unwrap();
    state.selected && state.damage.is_none()
}

#[test]
fn a_healthy_system_is_selected_again_whichever_byte_was_damaged() {
    for told in Told::ALL {
        for running in [Slot::A, Slot::B] {
            for byte in 0..if told == Told::Uboot { 2 } else { HEADER } {
                let rig = Rig::new(told, running);
                // What the damaged block says is never taken over, not even where it looks all right.
                rig.select(running.other(), true);
                damage(&rig, byte);
                assert_eq!(rig.phase(), Phase::Healthy, "{told:?}, {running}, byte {byte}");
                rig.boot_check().unwrap();
                assert_eq!(rig.selection(), (running, false, 0), "{told:?}, {running}, byte {byte}");
                assert!(is_sound(&rig) && rig.phase() == Phase::Healthy, "{told:?}, {running}, byte {byte}");
            }
        }
    }
}

/// It acts without a trial, too: after the next reboot the bootloader would start the other root.
#[test]
fn a_count_over_the_limit_goes_at_boot_unless_a_system_is_on_trial() {
    for told in Told::ALL {
        let limit = boot_state::detect(&Rig::new(told, Slot::A).paths()).unwrap().limit();
        let over = if told == Told::Uboot { limit + 1 } else { limit };
        let rig = Rig::new(told, Slot::A);
        rig.select(Slot::A, false);
        for (count, left) in [(over, 0), (1, 1)] {
            rig.count(count);
            rig.boot_check().unwrap();
            assert_eq!(rig.selection(), (Slot::A, false, left), "{told:?}");
            rig.select(Slot::A, false);
        }
        let rig = on_trial(told);
        rig.count(over);
        rig.boot_check().unwrap();
        assert_eq!(rig.selection().2, over, "{told:?}: on trial");
    }
}

/// The bootloader started it by itself; the boot files are those of the system that had been selected.
#[test]
fn a_system_that_was_started_by_itself_gets_its_boot_files() {
    for told in Told::ALL {
        let rig = Rig::new(told, Slot::A);
        rig.select(Slot::A, false);
        damage(&rig, 2);
        let rig = rig.booted(Slot::B);
        assert_eq!(fs::read_to_string(rig.at("/mnt/boot/board.dtb")).unwrap(), "of A");
        rig.boot_check().unwrap();
        assert_eq!((rig.selection(), rig.phase()), ((Slot::B, false, 0), Phase::Healthy), "{told:?}");
        assert_eq!(fs::read_to_string(rig.at("/mnt/boot/board.dtb")).unwrap(), "of B", "{told:?}");
        assert!(!rig.has("copal/bootfiles"));
    }
}

#[test]
fn a_trial_goes_on_and_is_not_committed_without_checks() {
    for told in Told::ALL {
        for healthy in [true, false] {
            let rig = on_trial(told);
            damage(&rig, 2);
            let rig = rig.booted(Slot::B);
            assert_eq!(rig.phase(), Phase::Trial, "{told:?}");
            rig.boot_check().unwrap();
            assert_eq!((rig.selection(), rig.phase()), ((Slot::B, true, 0), Phase::Trial), "{told:?}");
            assert!(is_sound(&rig), "{told:?}");
            rig.health.replace(vec![healthy]);
            assert_eq!(rig.health().is_ok(), healthy, "{told:?}");
            let (goal, phase) =
                if healthy { (Slot::B, Phase::Healthy) } else { (Slot::A, Phase::RolledBack) };
            assert_eq!((rig.selection(), rig.phase()), ((goal, false, 0), phase), "{told:?}");
        }
    }
}

/// The trial may also end with the damage alone, before any check at boot.
#[test]
fn a_verdict_over_a_damaged_file_is_written_whole() {
    for told in Told::ALL {
        for healthy in [true, false] {
            let rig = on_trial(told);
            damage(&rig, 2);
            rig.health.replace(vec![healthy]);
            assert_eq!(rig.health().is_ok(), healthy, "{told:?}");
            let goal = if healthy { Slot::B } else { Slot::A };
            assert_eq!(rig.selection(), (goal, false, 0), "{told:?}");
            assert!(is_sound(&rig), "{told:?}");
        }
    }
}

/// The old system runs because the bootloader took its default root: no attempt of the new one has failed.
#[test]
fn a_default_root_is_no_fallback() {
    for told in Told::ALL {
        let rig = on_trial(told);
        damage(&rig, 2);
        let rig = rig.booted(Slot::A);
        assert_eq!(rig.phase(), Phase::Cleanup, "{told:?}");
        rig.altboot().unwrap();
        rig.boot_check().unwrap();
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::Healthy), "{told:?}");
        assert!(is_sound(&rig) && !rig.has("rollback-altboot-triggered"), "{told:?}");
        assert!(!rig.has("rollback-health-breadcrumb") && !rig.has("copal/trial"), "{told:?}");
        assert!(history::read(&rig.paths()).iter().all(|r| r.event != Event::Altboot), "{told:?}");
    }
}

/// The bootloader reads the selection, but could not count: what it did is a fallback as ever.
#[test]
fn a_fallback_that_the_bootloader_reads_is_one() {
    for told in [Told::Grub, Told::Balena] {
        let rig = on_trial(told);
        rig.count(if told == Told::Grub { 2 } else { 3 });
        let mut bytes = fs::read(file(&rig)).unwrap();
        bytes[1000] = b'x';
        fs::write(file(&rig), bytes).unwrap();
        let rig = rig.booted(Slot::A);
        assert!(!is_sound(&rig));
        assert_eq!(rig.phase(), Phase::Altboot, "{told:?}");
        rig.boot_check().unwrap();
        rig.altboot().unwrap_err();
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack), "{told:?}");
        assert!(is_sound(&rig) && rig.has("rollback-altboot-triggered"), "{told:?}");
    }
}

/// Between an update and its reboot.
fn updated(told: Told, complete: bool) -> Rig {
    let rig = Rig::new(told, Slot::A);
    let paths = rig.paths();
    let transaction = "t1".to_owned();
    let boot_id = boot_id(&paths).unwrap();
    Marker { kind: Marked::Installing, boot_id, target: Slot::B, transaction }.set(&paths).unwrap();
    copal::state::files::drop_breadcrumbs(&paths).unwrap();
    copal::state::files::Trial { transaction: "t1".into(), slot: Slot::B, resets: 0 }.write(&paths).unwrap();
    rig.select(Slot::B, true);
    if complete {
        history::append(&paths, &Record::new("t1", Event::Installed));
    }
    rig
}

/// The reboot is requested: the program that clears the count writes the selection again.
#[test]
fn an_update_that_waits_for_its_reboot_is_selected_again() {
    for told in Told::ALL {
        let rig = updated(told, true);
        damage(&rig, 2);
        assert_eq!(rig.phase(), Phase::Pending, "{told:?}");
        clear_bootcount::run(&rig.paths()).unwrap();
        assert_eq!((rig.selection(), rig.phase()), ((Slot::B, true, 0), Phase::Pending), "{told:?}");
        assert!(is_sound(&rig), "{told:?}");
        // Of an update that is not complete, the running system is the one that surely boots.
        let rig = updated(told, false);
        damage(&rig, 2);
        assert_eq!(rig.phase(), Phase::Installing, "{told:?}");
        clear_bootcount::run(&rig.paths()).unwrap();
        assert_eq!(rig.selection(), (Slot::A, false, 0), "{told:?}");
        assert!(is_sound(&rig), "{told:?}");
    }
}

/// Without an orderly reboot: whichever root the bootloader then takes by itself, the next boot knows what to do.
#[test]
fn a_power_cut_before_the_reboot_of_an_update() {
    for told in Told::ALL {
        for (taken, goal) in
            [(Slot::A, ((Slot::A, false, 0), Phase::Healthy)), (Slot::B, ((Slot::B, true, 0), Phase::Trial))]
        {
            let rig = updated(told, true);
            damage(&rig, 2);
            let rig = rig.booted(taken);
            rig.boot_check().unwrap();
            assert_eq!((rig.selection(), rig.phase()), goal, "{told:?}, {taken}");
            assert!(is_sound(&rig), "{told:?}, {taken}");
        }
    }
}

/// Where a rollback was under way, its record says what to select.
#[test]
fn a_rollback_is_completed_over_a_damaged_file() {
    for told in Told::ALL {
        for running in [Slot::A, Slot::B] {
            let rig = on_trial(told);
            let record = RollbackRecord {
                target: Slot::A,
                kind: RollbackKind::Health,
                transaction: "t1".into(),
                boot_id: "earlier".into(),
            };
            record.write(&rig.paths()).unwrap();
            damage(&rig, 2);
            let rig = rig.booted(running);
            let done = rig.boot_check();
            assert_eq!(done.is_ok(), running == Slot::A, "the new system reboots: {told:?}");
            assert_eq!(rig.selection(), (Slot::A, false, 0), "{told:?}, {running}");
            assert!(is_sound(&rig), "{told:?}, {running}");
        }
    }
}

/// In its own boot, after its end.
#[test]
fn a_rollback_that_waits_for_its_reboot_is_selected_again() {
    for told in Told::ALL {
        let rig = on_trial(told);
        rig.health.replace(vec![false]);
        rig.health().unwrap_err();
        assert_eq!((rig.selection(), rig.phase()), ((Slot::A, false, 0), Phase::RolledBack), "{told:?}");
        damage(&rig, 2);
        clear_bootcount::run(&rig.paths()).unwrap();
        assert_eq!(rig.selection(), (Slot::A, false, 0), "{told:?}");
        assert!(is_sound(&rig), "{told:?}");
    }
}

/// The file is gone in the boot in which it was lost.
#[test]
fn a_lost_file_is_no_fallback() {
    for told in [Told::Uboot, Told::Grub] {
        let rig = Rig::new(told, if told == Told::Uboot { Slot::B } else { Slot::A });
        let running = rig.roots().active.slot;
        rig.select(running, false);
        fs::remove_file(file(&rig)).unwrap();
        assert_eq!(rig.phase(), Phase::Healthy, "{told:?}");
        fs::write(rig.at("/mnt/boot/EFI/BOOT/grub.cfg"), "load_env resin_root_part\n").unwrap();
        rig.boot_check().unwrap();
        assert_eq!(rig.selection(), (running, false, 0), "{told:?}");
        assert!(is_sound(&rig), "{told:?}");
    }
}
