//! Target choice on made-up machines: a folder tree with `sys`, `proc`, `dev` and `run`, no rights needed.

mod medium;
mod named;
mod refusals;
mod skips;

use std::path::{Path, PathBuf};

use crate::kit::tree::{GIB, MIB, Tree};
use copal::disk::select::ImageSize;
use copal::disk::select::{self, Candidate, Choice, TargetKind, medium_boot_partition};
use copal::disk::{Facts, serial_of};
use copal::error::{Code, Error};

const IMAGE: Option<ImageSize> = Some(ImageSize::Exact(4 * GIB));

fn names(list: &[&str]) -> Vec<Candidate> {
    let md = |n: &str| n.starts_with("md/");
    list.iter().map(|n| Candidate { name: format!("/dev/{n}").into(), md: md(n) }).collect()
}

fn choose(tree: &Tree, list: &[&str]) -> Result<Choice, Error> {
    select::choose(&names(list), &Facts::gather(&tree.paths()).unwrap(), IMAGE)
}

fn chosen(tree: &Tree, list: &[&str]) -> String {
    choose(tree, list).unwrap().target.name.display().to_string()
}

/// The error of a choice: its code, and its message for a look at the words.
#[track_caller]
fn refused(tree: &Tree, list: &[&str], code: Code, words: &[&str]) {
    let e = choose(tree, list).unwrap_err();
    assert_eq!(e.code(), code, "{e}");
    for word in words {
        assert!(e.message().contains(word), "{word:?} is not in: {e}");
    }
}

/// Why a device was passed over on the way to `nvme0n1`, which every tree of [`machine`] has.
#[track_caller]
fn skipped(tree: &Tree, name: &str, code: Code, word: &str) {
    let choice = choose(tree, &[name, "nvme0n1"]).unwrap();
    assert_eq!(choice.target.name, Path::new("/dev/nvme0n1"));
    assert_eq!(choice.rejected.len(), 1, "{:?}", choice.rejected);
    assert_eq!(choice.rejected[0].code, code);
    assert!(choice.rejected[0].reason.contains(word), "{:?}", choice.rejected);
    // The same disk, named by its owner, is refused for the same reason.
    let facts = Facts::gather(&tree.paths()).unwrap();
    let e = select::named(&Path::new("/dev").join(name), &facts, None, IMAGE).unwrap_err();
    assert_eq!(e.code(), code, "{e}");
    assert!(e.message().contains(word), "{e}");
}

/// A stick (sda) that holds `/` and an internal disk (nvme0n1).
fn machine() -> Tree {
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB).part("sda", "sda1", "8:1", MIB).part("sda", "sda2", "8:2", 2 * GIB);
    t.disk("nvme0n1", "259:0", 256 * GIB);
    t.mount("8:2", "/", "ext4", "/dev/sda2", "rw").mount("8:1", "/mnt/boot", "vfat", "/dev/sda1", "rw");
    t
}

#[test]
fn with_no_disk_left_every_device_is_listed() {
    let mut t = machine();
    t.disk("sdb", "8:16", 0).attr("sdb", "device/model", "Card  Reader").disk("mmcblk0", "179:0", 8 * GIB);
    t.attr("mmcblk0", "device/name", "8GTF4R").disk("ram0", "1:0", MIB).loopback("loop0", "7:0", 0, "");
    refused(
        &t,
        &["sda", "sdb", "vda"],
        Code::NoTarget,
        &[
            "/dev/sda (16.0 GiB, 17179869184 bytes, model unknown): it holds the running system",
            "/dev/sdb (0 bytes, Card  Reader): there is no medium",
            "/dev/vda (not a block device",
            "/dev/mmcblk0 (8.0 GiB, 8589934592 bytes, 8GTF4R): no pattern names it",
            "/dev/nvme0n1 (256.0 GiB",
        ],
    );
    let e = choose(&t, &["sda"]).unwrap_err();
    assert!(
        !e.message().contains("sda1") && !e.message().contains("ram0") && !e.message().contains("loop0"),
        "{e}"
    );
    assert_eq!(e.message().matches("/dev/sda (").count(), 1, "{e}");
    refused(&Tree::new(), &[], Code::NoTarget, &["no block device was seen"]);
}

#[test]
fn the_list_of_devices_is_bounded() {
    let mut t = Tree::new();
    for i in 0..100 {
        t.disk(&format!("sd{i}"), &format!("8:{i}"), GIB);
    }
    refused(&t, &[], Code::NoTarget, &["and 68 more"]);
}

#[test]
fn the_target_says_all_that_is_known() {
    let mut t = machine();
    t.attr("nvme0n1", "device/model", "KINGSTON").attr("nvme0n1", "device/serial", "50026B");
    t.attr("nvme0n1", "queue/logical_block_size", "4096").part("nvme0n1", "nvme0n1p1", "259:1", GIB);
    for (link, to) in [
        ("nvme-eui.0025", "nvme0n1"),
        ("nvme-KINGSTON_50026B", "nvme0n1"),
        ("ata-A", "sda"),
        ("a-part1", "nvme0n1p1"),
    ] {
        t.link(&format!("/dev/disk/by-id/{link}"), &format!("../../{to}"));
    }
    let target = choose(&t, &["nvme0n1"]).unwrap().target;
    assert_eq!(target.kind, TargetKind::Block);
    assert_eq!((target.dev, target.size, target.block_size), (Some((259, 0)), 256 * GIB, 4096));
    assert_eq!(target.by_id, Some(PathBuf::from("/dev/disk/by-id/nvme-KINGSTON_50026B")));
    assert_eq!((target.model.as_deref(), target.serial.as_deref()), (Some("KINGSTON"), Some("50026B")));
    assert_eq!(serial_of(&t.paths(), (259, 0)), target.serial);
    assert_eq!(serial_of(&t.paths(), (259, 1)), None);
    target.reverify(&target.identity().unwrap()).unwrap();
}

#[test]
fn a_machine_without_sysfs_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let e = Facts::gather(&copal::config::paths::Paths::new(dir.path())).unwrap_err();
    assert_eq!(e.code(), Code::Io);
    assert!(e.message().contains("sys/block"), "{e}");
}

#[test]
fn a_mount_point_that_is_no_text_hides_nothing() {
    let mut t = machine();
    t.disk("sdb", "8:16", 256 * GIB).part("sdb", "sdb1", "8:17", GIB);
    t.mapped("dm-0", "252:0", GIB, "vg-data", "LVM-x").stack("sdb1", "dm-0");
    t.attr("nvme0n1", "device/model", "KINGSTON").attr("nvme0n1", "device/serial", "50026B");
    t.disk("sdc", "8:32", 256 * GIB).udev("8:32", &[("ID_FS_TYPE", "linux_raid_member")]);
    t.mount_at_bytes("252:0", b"/run/media/caf\xe9");
    // What is mounted there is, and everything else is known as ever.
    refused(&t, &["sdb"], Code::TargetMounted, &["/dev/sdb", "vg-data", "/run/media/caf"]);
    skipped(&t, "sda", Code::TargetIsMedium, "");
    skipped(&t, "sdc", Code::TargetRaidMember, "linux_raid_member");
    let target = choose(&t, &["nvme0n1"]).unwrap().target;
    assert_eq!((target.model.as_deref(), target.serial.as_deref()), (Some("KINGSTON"), Some("50026B")));
    assert_eq!(serial_of(&t.paths(), (259, 0)), target.serial);
    // Nothing is left of how that was found out.
    t.folder("/run");
    Facts::gather(&t.paths()).unwrap();
    assert!(std::fs::read_dir(t.paths().at("/run")).unwrap().all(|e| e.unwrap().file_name() == "udev"));
}
