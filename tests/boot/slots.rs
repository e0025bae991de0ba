//! Which root partition is which, on made-up machines.

use crate::kit::tree::{GIB, MIB, Tree};
use copal::disk::Facts;
use copal::error::{Code, Error};
use copal::slot::{Roots, Slot};

const ACTIVE: &str = "/mnt/sysroot/active";
const INACTIVE: &str = "/mnt/sysroot/inactive";

/// A disk with boot partition and two roots, A running.
fn machine() -> Tree {
    let mut t = Tree::new();
    t.disk("mmcblk0", "179:0", 16 * GIB);
    for (n, bytes) in [(1, 40 * MIB), (2, GIB), (3, GIB), (4, 20 * MIB)] {
        t.part("mmcblk0", &format!("mmcblk0p{n}"), &format!("179:{n}"), bytes);
    }
    t.udev("179:2", &[("ID_FS_LABEL", "resin-rootA")]).udev("179:3", &[("ID_FS_LABEL", "resin-rootB")]);
    t.mount("179:1", "/mnt/boot", "vfat", "/dev/mmcblk0p1", "rw");
    t
}

fn active(t: &mut Tree, dev: &str) {
    t.mount(dev, ACTIVE, "ext4", "/dev/root", "ro");
}

fn inactive(t: &mut Tree, dev: &str) {
    t.mount(dev, INACTIVE, "ext4", "/dev/x", "rw");
}

fn roots(t: &Tree) -> Result<Roots, Error> {
    Roots::of(&Facts::gather(&t.paths()).unwrap())
}

#[test]
fn both_roots_by_their_mounts() {
    let mut t = machine();
    active(&mut t, "179:3");
    inactive(&mut t, "179:2");
    let roots = roots(&t).unwrap();
    assert_eq!((roots.active.slot, roots.active.index, roots.active.partition), (Slot::B, 3, (179, 3)));
    let inactive = roots.inactive().unwrap();
    assert_eq!((inactive.slot, inactive.index, inactive.disk), (Slot::A, 2, Some((179, 0))));
    assert!(!inactive.encrypted);
    assert_eq!(roots.in_slot(Slot::A), Some(inactive));
    assert_eq!(roots.in_slot(Slot::B), Some(&roots.active));
}

#[test]
fn an_automount_below_is_no_root() {
    let mut t = machine();
    active(&mut t, "179:2");
    t.mount("0:40", INACTIVE, "autofs", "systemd-1", "rw");
    inactive(&mut t, "179:3");
    assert_eq!(roots(&t).unwrap().inactive().unwrap().index, 3);
    let mut t = machine();
    active(&mut t, "179:2");
    t.mount("0:40", INACTIVE, "autofs", "systemd-1", "rw");
    let roots = roots(&t).unwrap();
    assert_eq!(roots.active.slot, Slot::A);
    assert_eq!(roots.inactive().unwrap_err().code(), Code::SlotUnknown);
}

#[test]
fn the_partition_below_a_decrypted_volume_counts() {
    let mut t = machine();
    t.part("mmcblk0", "mmcblk0p12", "179:12", GIB);
    for (dm, lower, label) in [("0", "mmcblk0p2", "resin-rootA"), ("1", "mmcblk0p12", "resin-rootB")] {
        let (name, dev) = (format!("dm-{dm}"), format!("253:{dm}"));
        t.mapped(&name, &dev, GIB, label, "CRYPT-LUKS2-0-x").stack(lower, &name);
        t.udev(&dev, &[("ID_FS_LABEL", label)]);
    }
    active(&mut t, "253:0");
    inactive(&mut t, "253:1");
    let roots = roots(&t).unwrap();
    let inactive = roots.inactive().unwrap();
    assert_eq!(
        (inactive.index, inactive.dev, inactive.partition, inactive.encrypted),
        (12, (253, 1), (179, 12), true)
    );
    assert_eq!(inactive.disk, Some((179, 0)));
}

#[test]
fn one_label_is_enough_and_without_any_the_first_partition_is_a() {
    let mut t = machine();
    t.udev("179:2", &[("ID_FS_LABEL", "other")]);
    active(&mut t, "179:2");
    inactive(&mut t, "179:3");
    assert_eq!(roots(&t).unwrap().active.slot, Slot::A);
    t.udev("179:3", &[("ID_FS_LABEL", "resin-rootAB")]);
    assert_eq!(roots(&t).unwrap().active.slot, Slot::A);
    let mut t = machine();
    t.udev("179:2", &[]).udev("179:3", &[]);
    active(&mut t, "179:3");
    inactive(&mut t, "179:2");
    assert_eq!(roots(&t).unwrap().active.slot, Slot::B);
}

#[track_caller]
fn refused(t: &Tree, code: Code, words: &str) {
    let e = roots(t).unwrap_err();
    assert_eq!(e.code(), code, "{e}");
    assert!(e.message().contains(words), "{e}");
}

#[test]
fn what_cannot_be_determined_is_not_guessed() {
    let t = machine();
    refused(&t, Code::SlotUnknown, "no ext4 file system is mounted there");
    let mut t = machine();
    active(&mut t, "179:2");
    inactive(&mut t, "179:2");
    refused(&t, Code::SlotSame, "the same device");
    // Two volumes of one partition.
    let mut t = machine();
    for (name, dev, label) in [("dm-0", "253:0", "resin-rootA"), ("dm-1", "253:1", "resin-rootB")] {
        t.mapped(name, dev, GIB, label, "CRYPT-LUKS2-0-x").stack("mmcblk0p2", name);
    }
    active(&mut t, "253:0");
    inactive(&mut t, "253:1");
    refused(&t, Code::SlotSame, "the same device");
    let mut t = machine();
    t.udev("179:3", &[("ID_FS_LABEL", "resin-rootA")]);
    active(&mut t, "179:2");
    inactive(&mut t, "179:3");
    refused(&t, Code::SlotUnknown, "both root partitions have the label resin-rootA");
    let mut t = machine();
    active(&mut t, "179:0");
    refused(&t, Code::SlotUnknown, "not a partition");
    let mut t = machine();
    t.udev("179:2", &[]);
    active(&mut t, "179:2");
    refused(&t, Code::SlotUnknown, "no label of a root partition");
    let mut t = machine();
    active(&mut t, "8:77");
    refused(&t, Code::SlotUnknown, "no block device 8:77");
}

#[test]
fn the_boot_partition_that_the_bootloader_reads() {
    let mut t = machine();
    assert_eq!(t.paths().plain_boot(), t.paths().boot());
    t.mount("179:4", "/mnt/efi", "vfat", "/dev/mmcblk0p4", "rw");
    assert_eq!(t.paths().plain_boot(), t.paths().at("/mnt/efi"));
}
