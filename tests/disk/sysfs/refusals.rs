//! What refuses the whole flash.

use super::*;

#[test]
fn a_mounted_disk_refuses_and_names_the_mount_point() {
    let mut t = machine();
    t.part("nvme0n1", "nvme0n1p1", "259:1", GIB).mount("259:1", "/mnt/my\\040data", "ext4", "/dev/x", "rw");
    refused(&t, &["nvme0n1"], Code::TargetMounted, &["/dev/nvme0n1", "nvme0n1p1", "/mnt/my data"]);
    t.mount("259:1", "/a/bind", "ext4", "/dev/x", "rw");
    refused(&t, &["nvme0n1"], Code::TargetMounted, &["and at another place"]);
}

#[test]
fn a_refused_disk_never_leads_to_the_next() {
    let mut t = machine();
    t.disk("sdb", "8:16", 256 * GIB).disk("sdc", "8:32", MIB).disk("sdd", "8:48", 256 * GIB);
    t.mount("8:16", "/data", "ext4", "/dev/sdb", "rw").attr("sdd", "ro", "1");
    refused(&t, &["sda", "sdb", "nvme0n1"], Code::TargetMounted, &["/dev/sdb"]);
    refused(&t, &["sda", "sdc", "nvme0n1"], Code::TargetTooSmall, &["/dev/sdc"]);
    refused(&t, &["sdd", "nvme0n1"], Code::TargetReadOnly, &["/dev/sdd"]);
    t.swap("/dev/nvme0n1", "partition");
    refused(&t, &["nvme0n1", "sda"], Code::TargetSwap, &["/dev/nvme0n1"]);
}

#[test]
fn a_file_system_on_a_volume_on_a_partition_is_a_mount_of_the_disk() {
    let mut t = machine();
    t.part("nvme0n1", "nvme0n1p2", "259:2", GIB).mapped("dm-0", "252:0", GIB, "vg-data", "LVM-x");
    t.stack("nvme0n1p2", "dm-0");
    refused(&t, &["nvme0n1"], Code::TargetInUse, &["/dev/nvme0n1p2", "vg-data", "LVM"]);
    t.mount("252:0", "/data", "ext4", "/dev/mapper/vg-data", "rw");
    refused(&t, &["nvme0n1"], Code::TargetMounted, &["vg-data", "/data"]);
}

#[test]
fn each_holder_is_named_with_what_it_is() {
    for (holder, dev, mapper, words) in [
        ("dm-0", "252:0", Some(("secret", "CRYPT-LUKS1-x")), ["secret", "an encrypted volume"]),
        ("dm-0", "252:0", Some(("mpatha", "mpath-x")), ["mpatha", "a disk"]),
        ("bcache0", "251:0", None, ["bcache0", "a disk"]),
    ] {
        let mut t = machine();
        match mapper {
            Some((name, uuid)) => t.mapped(holder, dev, GIB, name, uuid),
            None => t.disk(holder, dev, GIB),
        };
        t.stack("nvme0n1", holder);
        refused(&t, &["nvme0n1"], Code::TargetInUse, &words);
    }
}

#[test]
fn a_loop_device_over_the_disk_itself_holds_it() {
    let mut t = machine();
    t.loopback("loop3", "7:3", GIB, "/dev/nvme0n1");
    refused(&t, &["nvme0n1"], Code::TargetInUse, &["loop3", "a loop device"]);
    t.mount("7:3", "/x", "ext4", "/dev/loop3", "rw");
    refused(&t, &["nvme0n1"], Code::TargetMounted, &["loop3", "/x"]);
}

#[test]
fn a_loop_over_a_file_of_the_disk_is_the_disk_in_use() {
    let mut t = machine();
    t.part("nvme0n1", "nvme0n1p1", "259:1", GIB).mount("259:1", "/data", "ext4", "/dev/nvme0n1p1", "rw");
    t.loopback("loop3", "7:3", 8 * GIB, "/data/image").mount("7:3", "/x", "ext4", "/dev/loop3", "rw");
    refused(&t, &["nvme0n1"], Code::TargetMounted, &["/data", "and at another place"]);
    refused(&t, &["loop3"], Code::TargetMounted, &["/x"]);
}

#[test]
fn a_member_of_a_mounted_btrfs_is_in_use_though_no_mount_names_it() {
    let mut t = machine();
    t.disk("sdb", "8:16", 16 * GIB)
        .folder("/sys/fs/btrfs/u/devices/sdb")
        .folder("/sys/fs/btrfs/u/devices/nvme0n1");
    t.mount("0:50", "/pool", "btrfs", "/dev/sdb", "rw");
    refused(&t, &["nvme0n1"], Code::TargetMounted, &["nvme0n1", "/pool"]);

    let mut elsewhere = machine(); // mounted where this process cannot see it
    elsewhere.folder("/sys/fs/btrfs/u/devices/nvme0n1");
    refused(&elsewhere, &["nvme0n1"], Code::TargetInUse, &["btrfs"]);
}

#[test]
fn external_logs_and_journals_are_uses() {
    let mut t = machine();
    t.disk("sdb", "8:16", 16 * GIB).mount("8:16", "/x", "xfs", "/dev/sdb", "rw,logdev=/dev/nvme0n1");
    refused(&t, &["nvme0n1"], Code::TargetMounted, &["nvme0n1", "/x"]);

    let mut t = machine();
    t.folder("/proc/fs/jbd2/nvme0n1");
    refused(&t, &["nvme0n1"], Code::TargetInUse, &["journal"]);
}

#[test]
fn swap_on_a_partition_and_in_a_file_refuses() {
    let mut t = machine();
    t.part("nvme0n1", "nvme0n1p3", "259:3", GIB)
        .link("/dev/swap", "nvme0n1p3")
        .swap("/dev/swap", "partition");
    refused(&t, &["nvme0n1"], Code::TargetSwap, &["/dev/swap"]);

    // As the kernel prints it within a chroot with mounts of its own.
    let mut t = machine();
    t.part("nvme0n1", "nvme0n1p3", "259:3", GIB).swap("/outside/dev/nvme0n1p3", "partition");
    refused(&t, &["nvme0n1"], Code::TargetSwap, &["/outside/dev/nvme0n1p3"]);

    let mut t = machine();
    t.part("nvme0n1", "nvme0n1p3", "259:3", GIB).mount("259:3", "/data", "ext4", "/dev/nvme0n1p3", "rw");
    t.swap("/data/swap", "file");
    refused(&t, &["nvme0n1"], Code::TargetMounted, &["/data"]);
}

#[test]
fn a_disk_too_small_refuses_with_both_sizes() {
    let mut t = machine();
    t.disk("sdb", "8:16", 4 * GIB - 512);
    refused(&t, &["sdb"], Code::TargetTooSmall, &["4.0 GiB", "4294967296", "3.9 GiB", "4294966784"]);
    let facts = Facts::gather(&t.paths()).unwrap();
    let with = |size| select::choose(&names(&["sdb"]), &facts, size);
    assert_eq!(with(Some(ImageSize::AtLeast(4 * GIB))).unwrap_err().code(), Code::TargetTooSmall);
    with(Some(ImageSize::AtLeast(4 * GIB - 512))).unwrap();
    with(Some(ImageSize::Exact(4 * GIB - 512))).unwrap();
    with(None).unwrap();
}

#[test]
fn what_is_in_use_is_said_first() {
    let mut t = machine();
    t.disk("sdb", "8:16", MIB).attr("sdb", "ro", "1");
    refused(&t, &["sdb"], Code::TargetReadOnly, &["read-only"]);
    t.mapped("dm-0", "252:0", GIB, "v", "LVM-x").stack("sdb", "dm-0");
    refused(&t, &["sdb"], Code::TargetInUse, &[]);
    t.swap("/dev/sdb", "partition");
    refused(&t, &["sdb"], Code::TargetSwap, &[]);
    t.mount("8:16", "/x", "ext4", "/dev/sdb", "rw");
    refused(&t, &["sdb"], Code::TargetMounted, &[]);
}
