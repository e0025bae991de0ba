//! Nothing leads out of either boot partition.

use copal::boot_files::install::Destination;
use copal::error::{Code, Effect};

use super::support::{Ext4, Rig, Undo, can_run, see, tool, tree};
use crate::kit::needs::needs;

const CONF: &str =
    "INTERNAL_DEVICE_BOOTLOADER_CONFIG=x.cfg\nINTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=EFI/BOOT/grub.cfg\n";
const X: (&str, &str) = ("x.cfg", "new");

/// The check refuses, and so does the copy where the check was left out; nothing is changed in or outside.
fn refused(medium: &[(&str, &str)], dest: &[(&str, &str)], code: Code) {
    let rig = Rig::new(medium, dest);
    std::fs::create_dir(rig.dir.path().join("outside")).unwrap();
    std::fs::write(rig.dir.path().join("outside/grub.cfg"), "untouched").unwrap();
    let before = see(rig.dir.path());
    let contents = rig.gather(CONF).unwrap();
    let e = contents.check(&rig.open(), 0).unwrap_err();
    assert_eq!((e.code(), e.effect()), (code, Effect::Written), "{e}");
    assert!(e.message().contains("internal_boot"), "{e}");
    contents.deploy(&rig.open()).unwrap_err();
    let after = see(rig.dir.path());
    assert_eq!(after.get("outside/grub.cfg"), before.get("outside/grub.cfg"));
    assert_eq!(after.len(), before.len(), "{after:?}");
}

#[test]
fn links_on_the_internal_partition_are_not_followed() {
    let escapes = Code::BootPathEscapes;
    refused(&[X], &[("EFI", "-> ../outside")], escapes);
    refused(&[X], &[("EFI/BOOT", "-> ../../outside")], escapes);
    refused(&[X], &[("EFI/BOOT", "-> dangling")], escapes);
    refused(&[X], &[("EFI/BOOT", "-> inside"), ("EFI/inside/", "")], escapes);
    refused(&[X], &[("EFI/BOOT/grub.cfg", "-> ../../../outside/grub.cfg")], escapes);
    refused(&[X], &[("EFI/BOOT/grub.cfg", "-> /nowhere")], escapes);
    // The link of the boot split, where there was no split.
    refused(&[X], &[("EFI", "-> ../efi/EFI")], escapes);
    refused(&[("splash/a", "a")], &[("splash", "-> ../outside")], escapes);
    refused(&[("system-connections/a", "a")], &[("system-connections", "-> ../outside")], escapes);
}

#[test]
fn other_kinds_in_the_way_are_named() {
    refused(&[X], &[("EFI", "a file")], Code::BootNameInvalid);
    refused(&[X], &[("EFI/BOOT/grub.cfg/", "")], Code::BootNameInvalid);
    refused(&[("splash/a", "a")], &[("splash/a/b", "")], Code::BootNameInvalid);
    refused(&[("system-connections/a", "a")], &[("system-connections", "a file")], Code::BootNameInvalid);
}

#[test]
fn links_on_the_medium_lead_to_its_own_files_only() {
    let platform = Rig::new(&[("secret", "s"), ("folder/", "")], &[]);
    let abs = |name: &str| format!("-> {}", platform.medium.join(name).display());
    let (secret, folder) = (abs("secret"), abs("folder"));
    let bad: &[&[(&str, &str)]] = &[
        &[("splash/a", &secret)],
        &[("splash", &folder)],
        &[("splash/sub", &folder)],
        &[("splash/a", "-> missing")],
        &[("splash/a", "-> a")],
        &[("splash/a", "-> .")],
        &[("resinOS_uEnv.txt", &secret)],
        &[("x.cfg", &secret)],
    ];
    for medium in bad {
        let rig = Rig::new(medium, &[]);
        let e = rig.gather(CONF).unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::BootPathEscapes, Effect::Refused), "{medium:?}: {e}");
        assert!(e.message().contains(medium[0].0), "{e}");
    }
    let rig = Rig::new(&[("splash/a", "-> ../other"), ("other", "content")], &[]);
    rig.gather("").unwrap().deploy(&rig.open()).unwrap();
    assert_eq!(rig.see(), tree(&[("splash/", ""), ("splash/a", "content")]));
}

#[test]
fn a_configured_path_cannot_climb() {
    for path in ["../x", "EFI/../../x", "/../x"] {
        let conf = format!(
            "INTERNAL_DEVICE_BOOTLOADER_CONFIG=x.cfg\nINTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH={path}\n"
        );
        let rig = Rig::new(&[X], &[]);
        assert_eq!(rig.gather(&conf).unwrap_err().code(), Code::ConfInvalid, "{path}");
    }
}

/// The one exception: the EFI programs of an encrypted disk are on its non-encrypted partition.
#[test]
fn the_link_of_the_boot_split_leads_to_the_partition_that_is_not_encrypted() {
    needs!(can_run);
    let rig = Rig::new(&[X], &[("EFI", "-> ../efi/EFI")]);
    let efi = rig.dir.path().join("efi");
    std::fs::create_dir(&efi).unwrap();
    let (disk, other) = (Ext4::new(rig.dir.path(), "a", 8), Ext4::new(rig.dir.path(), "b", 8));
    tool(&["mount", disk.node.to_str().unwrap(), efi.to_str().unwrap()]);
    let _unmount = Undo::by(&["umount", efi.to_str().unwrap()]);
    std::fs::create_dir(efi.join("EFI")).unwrap();
    let contents = rig.gather(CONF).unwrap();

    // Another partition than the one that was split off, and a link that leads further.
    let wrong = Destination::open(&rig.dest, Some(&other.node)).unwrap();
    assert_eq!(contents.check(&wrong, 0).unwrap_err().code(), Code::BootPathEscapes);
    contents.deploy(&wrong).unwrap_err();

    let right = Destination::open(&rig.dest, Some(&disk.node)).unwrap();
    contents.check(&right, 0).unwrap();
    contents.deploy(&right).unwrap();
    assert_eq!(std::fs::read_to_string(efi.join("EFI/BOOT/grub.cfg")).unwrap(), "new");
    assert_eq!(rig.see(), tree(&[("EFI", "-> ../efi/EFI")]));

    // It must fit there, not here.
    let full = vec![0; 16 << 20];
    std::fs::write(efi.join("filler"), &full).unwrap_err();
    let e = contents.check(&right, 0).unwrap_err();
    assert_eq!(e.code(), Code::BootPartitionFull, "{e}");

    std::fs::remove_file(rig.dest.join("EFI")).unwrap();
    std::os::unix::fs::symlink("../efi/EFI/BOOT", rig.dest.join("EFI")).unwrap();
    assert_eq!(contents.check(&right, 0).unwrap_err().code(), Code::BootPathEscapes);
}

/// A file system that is mounted inside is not the boot partition.
#[test]
fn a_mount_inside_is_left_alone() {
    needs!(can_run);
    for inside in ["EFI", "system-connections/in"] {
        let rig =
            Rig::new(&[X, ("system-connections/a", "a")], &[("EFI/", ""), ("system-connections/in/", "")]);
        let at = rig.dest.join(inside);
        let _unmount = super::support::small(&at, 64);
        std::fs::write(at.join("file"), "stays").unwrap();
        let contents = rig.gather(if inside == "EFI" { CONF } else { "" }).unwrap();
        assert_eq!(contents.check(&rig.open(), 0).unwrap_err().code(), Code::BootPathEscapes, "{inside}");
        contents.deploy(&rig.open()).unwrap_err();
        assert_eq!(std::fs::read_to_string(at.join("file")).unwrap(), "stays");
    }
}
