//! Which disks are the installation medium.

use super::*;

#[test]
fn the_stick_that_runs_is_never_the_target() {
    let t = machine();
    skipped(&t, "sda", Code::TargetIsMedium, "running system");
    assert_eq!(chosen(&t, &["sda", "nvme0n1"]), "/dev/nvme0n1");
}

#[test]
fn the_medium_is_found_by_number_whatever_it_is_called() {
    // The mount table names neither the partition's node nor its number in words.
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB).part("sda", "sda2", "8:2", 2 * GIB).disk("nvme0n1", "259:0", 256 * GIB);
    t.mount("8:2", "/", "ext4", "/dev/root", "rw");
    t.link("/dev/disk/by-label/flash-rootA", "/dev/nvme0n1");
    skipped(&t, "sda", Code::TargetIsMedium, "");
}

#[test]
fn the_same_label_on_another_disk_excludes_nothing() {
    let mut t = machine();
    t.part("nvme0n1", "nvme0n1p1", "259:1", GIB);
    t.udev("8:2", &[("ID_FS_LABEL", "flash-rootA")]).udev("259:1", &[("ID_FS_LABEL", "flash-rootA")]);
    assert_eq!(chosen(&t, &["sda", "nvme0n1"]), "/dev/nvme0n1");
}

#[test]
fn an_array_that_holds_the_root_excludes_itself_and_its_members() {
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB).part("sda", "sda1", "8:1", GIB).disk("nvme0n1", "259:0", 256 * GIB);
    t.array("md0", "9:0", GIB, "raid1").stack("sda1", "md0").part("md0", "md0p2", "259:9", GIB);
    t.mount("259:9", "/", "ext4", "/dev/md0p2", "rw");
    skipped(&t, "sda", Code::TargetIsMedium, "");
    skipped(&t, "md0", Code::TargetIsMedium, "");
}

#[test]
fn a_root_on_lvm_on_crypt_on_a_partition_is_traced_down() {
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB).part("sda", "sda2", "8:2", GIB).disk("nvme0n1", "259:0", 256 * GIB);
    t.mapped("dm-0", "252:0", GIB, "luks", "CRYPT-x").stack("sda2", "dm-0");
    t.mapped("dm-1", "252:1", GIB, "vg-root", "LVM-x").stack("dm-0", "dm-1");
    t.mount("252:1", "/", "ext4", "/dev/mapper/vg-root", "rw");
    skipped(&t, "sda", Code::TargetIsMedium, "");
}

#[test]
fn an_overlay_root_is_traced_through_its_layers() {
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB).part("sda", "sda1", "8:1", 8 * GIB).disk("sdb", "8:16", 16 * GIB);
    t.disk("nvme0n1", "259:0", 256 * GIB).loopback("loop0", "7:0", GIB, "/run/live/root.squashfs");
    t.mount("0:1", "/", "rootfs", "rootfs", "rw").mount("0:30", "/run", "tmpfs", "tmpfs", "rw");
    t.mount("8:1", "/run/live", "vfat", "/dev/sda1", "ro").mount(
        "7:0",
        "/run/base",
        "squashfs",
        "/dev/loop0",
        "ro",
    );
    t.mount("8:16", "/run/rw", "ext4", "/dev/sdb", "rw");
    t.mount("0:31", "/run/lower", "overlay", "x", "ro,lowerdir=/run/base:/run/none");
    t.mount(
        "0:32",
        "/",
        "overlay",
        "overlay",
        "rw,lowerdir=/run/lower,upperdir=/run/rw/up,workdir=/run/rw/work",
    );
    skipped(&t, "sda", Code::TargetIsMedium, ""); // two overlays, a loop device and a file system below
    skipped(&t, "sdb", Code::TargetIsMedium, "");
}

#[test]
fn an_overlay_whose_layers_were_named_before_the_root_changed_is_found_elsewhere() {
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB).part("sda", "sda2", "8:2", GIB).disk("nvme0n1", "259:0", 256 * GIB);
    t.mount("0:32", "/", "overlay", "overlay", "rw,lowerdir=/engine/l/A:/engine/l/B,upperdir=/engine/diff");
    t.mount("8:2", "/mnt/sysroot/active", "ext4", "/dev/sda2", "rw");
    t.folder("/mnt/sysroot/active/engine/l/A");
    skipped(&t, "sda", Code::TargetIsMedium, "");
}

#[test]
fn overlays_that_name_each_other_end() {
    let mut t = machine();
    t.mount("0:40", "/a", "overlay", "o", "rw,lowerdir=/b/x").mount(
        "0:41",
        "/b",
        "overlay",
        "o",
        "rw,lowerdir=/a/x",
    );
    t.mount("0:42", "/c", "overlay", "o", "rw,lowerdir=/c/x:/a");
    assert_eq!(chosen(&t, &["nvme0n1"]), "/dev/nvme0n1");
}

#[test]
fn in_an_initramfs_the_former_boot_disk_is_a_target() {
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB)
        .part("sda", "sda1", "8:1", GIB)
        .mount("0:2", "/", "rootfs", "rootfs", "rw");
    t.udev("8:1", &[("ID_FS_LABEL", "flash-boot")]);
    assert_eq!(chosen(&t, &["sda"]), "/dev/sda");
    assert_eq!(medium_boot_partition(&Facts::gather(&t.paths()).unwrap()), None);
}

#[test]
fn a_btrfs_root_excludes_all_its_members() {
    for source in ["/dev/sda2", "/dev/disk/by-uuid/u", "/dev/root"] {
        let mut t = Tree::new();
        t.disk("sda", "8:0", 16 * GIB).part("sda", "sda2", "8:2", GIB).disk("sdb", "8:16", 16 * GIB);
        t.disk("nvme0n1", "259:0", 256 * GIB).link("/dev/disk/by-uuid/u", "../../sda2");
        t.folder("/sys/fs/btrfs/u/devices/sda2")
            .folder("/sys/fs/btrfs/u/devices/sdb")
            .folder("/sys/fs/btrfs/features");
        t.mount("0:20", "/", "btrfs", source, "rw,subvol=/@");
        skipped(&t, "sda", Code::TargetIsMedium, "");
        skipped(&t, "sdb", Code::TargetIsMedium, "");
    }
}

#[test]
fn a_bcachefs_root_names_all_its_devices() {
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB).disk("sdb", "8:16", 16 * GIB).disk("nvme0n1", "259:0", 256 * GIB);
    t.mount("0:20", "/", "bcachefs", "/dev/sda:/dev/sdb", "rw");
    skipped(&t, "sda", Code::TargetIsMedium, "");
    skipped(&t, "sdb", Code::TargetIsMedium, "");
}

#[test]
fn a_root_on_a_loop_on_a_disk_makes_the_disk_the_medium() {
    let mut t = Tree::new();
    t.disk("sda", "8:0", 16 * GIB).part("sda", "sda1", "8:1", 8 * GIB).disk("nvme0n1", "259:0", 256 * GIB);
    t.loopback("loop0", "7:0", GIB, "/host/root.img");
    t.mount("7:0", "/", "ext4", "/dev/loop0", "rw").mount("8:1", "/host", "ntfs3", "/dev/sda1", "rw");
    skipped(&t, "sda", Code::TargetIsMedium, "");
    skipped(&t, "loop0", Code::TargetIsMedium, "");
}

#[test]
fn a_boot_partition_from_another_disk_is_noticed() {
    let mut t = machine();
    assert_eq!(medium_boot_partition(&Facts::gather(&t.paths()).unwrap()), None);
    t.part("nvme0n1", "nvme0n1p1", "259:1", GIB).mount("259:1", "/mnt/boot", "vfat", "/dev/nvme0n1p1", "rw");
    t.udev("8:1", &[("ID_FS_LABEL", "flash-boot")]).udev("259:1", &[("ID_FS_LABEL", "flash-boot")]);
    let found = medium_boot_partition(&Facts::gather(&t.paths()).unwrap()).unwrap();
    let node = |n| t.paths().at(format!("/dev/{n}"));
    assert_eq!(found.mounted, node("nvme0n1p1"));
    assert_eq!(found.partition, Some(node("sda1")));
    assert_eq!(found.partitions, [node("sda1"), node("sda2")]);
}
