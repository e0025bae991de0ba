//! What the hooks refuse, and what they leave alone.

use std::fs;

use copal::error::Code;

use super::machine::{ENCRYPTED, Machine, PLAIN, UEFI, golden};

const EFI: &str = "/mnt/efi/EFI/BOOT";

#[test]
fn on_an_encrypted_disk_nothing_is_selected_without_its_loader() {
    for missing in ["bootx64.efi.secureboot", "grub-luks.cfg.sig"] {
        let machine = Machine::new(ENCRYPTED);
        machine.lay(&golden("grub-encrypted", "root"));
        for folder in [EFI, "/resin-boot/EFI/BOOT"] {
            fs::remove_file(machine.at(folder).join(missing)).unwrap();
        }
        let env = machine.see()["efi/EFI/BOOT/grubenv"].clone();
        let e = machine.run("99-resin-grub", true).unwrap_err();
        assert_eq!(e.code(), Code::SecureLoaderMissing);
        assert!(e.to_string().contains(missing), "{e}");
        assert_eq!(machine.see()["efi/EFI/BOOT/grubenv"], env, "{missing}");
        // Back: the selection first, then the same complaint.
        let e = machine.run("99-resin-grub", false).unwrap_err();
        assert_eq!(e.code(), Code::SecureLoaderMissing);
        assert!(machine.see()["efi/EFI/BOOT/grubenv"].contains("resin_root_part=3\nupgrade_available=0"));
    }
}

#[test]
fn the_release_s_own_loader_is_put_in_place_of_any_other() {
    let machine = Machine::new(ENCRYPTED);
    machine.lay(&golden("grub-encrypted-in-place", "root"));
    fs::write(machine.at(EFI).join("bootx64.efi"), "plain loader\n").unwrap();
    fs::write(machine.at(EFI).join("grub.cfg.sig"), "of an older release\n").unwrap();
    machine.run("99-resin-grub", true).unwrap();
    assert_eq!(machine.see(), super::machine::see(&golden("grub-encrypted-in-place", "expected/mnt")));
}

#[test]
fn a_loader_that_only_the_boot_partition_has_will_do() {
    let machine = Machine::new(ENCRYPTED);
    machine.lay(&golden("grub-encrypted", "root"));
    fs::remove_dir_all(machine.at("/resin-boot")).unwrap();
    machine.run("99-resin-grub", true).unwrap();
    assert_eq!(machine.see(), super::machine::see(&golden("grub-encrypted", "expected/mnt")));
}

/// Where each loader needs a policy of the TPM, only `0-signed-update` replaces it.
#[test]
fn a_loader_that_needs_a_policy_stays_with_its_configuration() {
    for (setup_mode, stays) in [(0, true), (1, false)] {
        let machine = Machine::new(ENCRYPTED);
        machine.lay(&golden("grub-encrypted", "root"));
        let variables = machine.at("/sys/firmware/efi/efivars");
        fs::create_dir_all(&variables).unwrap();
        for (name, flag) in [("SecureBoot", 1), ("SetupMode", setup_mode)] {
            let variable = variables.join(format!("{name}-8be4df61-93ca-11d2-aa0d-00e098032b8c"));
            fs::write(variable, [6, 0, 0, 0, flag]).unwrap();
        }
        let folder = machine.at("/mnt/efi/EFI/BOOT");
        fs::write(folder.join("bootx64.efi"), "another loader").unwrap();
        fs::write(folder.join("grub.cfg"), "its configuration").unwrap();
        machine.run("99-resin-grub", true).unwrap();
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        assert_eq!(read("bootx64.efi") == b"another loader", stays);
        assert_eq!(read("grub.cfg") == b"its configuration", stays);
        assert!(fs::read_to_string(folder.join("grubenv")).unwrap().contains("upgrade_available=1"));
    }
}

#[test]
fn the_only_configuration_of_grub_stays_whatever_the_firmware_seems_to_be() {
    // UEFI, and nothing below EFI: the folder with the selection is the other one.
    let machine = Machine::new(UEFI);
    machine.lay(&golden("grub-bios", "expected"));
    machine.run("99-resin-grub", true).unwrap();
    assert_eq!(machine.see(), super::machine::see(&golden("grub-bios", "expected/mnt")));
}

#[test]
fn without_the_other_root_nothing_is_selected() {
    for hook in ["99-resin-uboot", "99-balena-bootloader", "99-resin-grub"] {
        let machine = Machine::new(PLAIN);
        machine.lay(&golden("uboot-repeat", "root"));
        let mounts = fs::read_to_string(machine.at("/proc/self/mountinfo")).unwrap();
        let kept: String =
            mounts.lines().filter(|l| !l.contains("inactive")).map(|l| format!("{l}\n")).collect();
        fs::write(machine.at("/proc/self/mountinfo"), kept).unwrap();
        let before = machine.see();
        assert_eq!(machine.run(hook, true).unwrap_err().code(), Code::SlotUnknown, "{hook}");
        assert_eq!(machine.see(), before, "{hook}");
    }
}

#[test]
fn without_a_boot_partition_no_update_is_announced() {
    for during_update in [true, false] {
        let machine = Machine::new(PLAIN);
        machine.lay(&golden("rollback-undo-shell", "root"));
        fs::remove_dir_all(machine.at("/mnt/boot")).unwrap();
        let before = machine.see();
        let e = machine.run("80-rollback", during_update).unwrap_err();
        assert_eq!(e.code(), Code::HookFailed);
        assert!(e.to_string().contains("/mnt/boot does not exist"), "{e}");
        assert_eq!(machine.see(), before);
    }
}

#[test]
fn a_marker_of_another_boot_keeps_no_breadcrumb() {
    let machine = Machine::new(PLAIN);
    machine.lay(&golden("rollback-undo-copal", "root"));
    fs::write(machine.at("/proc/sys/kernel/random/boot_id"), "another\n").unwrap();
    machine.run("80-rollback", false).unwrap();
    assert!(!machine.at("/mnt/state/rollback-health-breadcrumb").exists());
}

#[test]
fn a_data_partition_that_is_not_there_is_an_error() {
    let machine = Machine::new(PLAIN);
    fs::remove_dir_all(machine.at("/mnt/data")).unwrap();
    assert_eq!(machine.run("60-data-breadcrumb", true).unwrap_err().code(), Code::DataUnwritable);
}
