//! What is passed over.

use super::*;

#[test]
fn a_name_that_is_a_link_is_judged_by_its_end_and_kept() {
    let mut t = machine();
    t.link("/dev/stick", "disk/by-id/usb").link("/dev/disk/by-id/usb", "../../sda");
    skipped(&t, "stick", Code::TargetIsMedium, "");
    t.link("/dev/internal", "/dev/nvme0n1");
    let target = choose(&t, &["internal"]).unwrap().target;
    assert_eq!((target.name, target.node), ("/dev/internal".into(), t.paths().at("/dev/nvme0n1")));
    t.link("/dev/loopy", "loopy").link("/dev/gone", "nowhere");
    let choice = choose(&t, &["loopy", "gone", "nvme0n1"]).unwrap();
    assert!(choice.rejected.iter().all(|r| r.code == Code::TargetNotDisk));
    assert_eq!(choice.rejected.len(), 2);
}

#[test]
fn an_empty_card_reader_is_passed_over() {
    let mut t = machine();
    t.disk("sdb", "8:16", 0);
    skipped(&t, "sdb", Code::TargetNoMedium, "no medium");
}

#[test]
fn what_is_not_a_whole_disk_is_passed_over() {
    let mut t = machine();
    t.disk("mmcblk0", "179:0", 8 * GIB).disk("mmcblk0boot0", "179:8", 4 * MIB).disk(
        "mmcblk0gp0",
        "179:24",
        GIB,
    );
    t.part("nvme0n1", "nvme0n1p1", "259:1", GIB);
    t.disk("sr0", "11:0", 8 * GIB).attr("sr0", "device/type", "5");
    t.file("/dev/null0", "");
    skipped(&t, "mmcblk0boot0", Code::TargetNotDisk, "hardware partition");
    skipped(&t, "mmcblk0gp0", Code::TargetNotDisk, "hardware partition");
    skipped(&t, "nvme0n1p1", Code::TargetNotDisk, "a partition");
    skipped(&t, "sr0", Code::TargetNotDisk, "optical");
    let choice = choose(&t, &["null0", "dangling", "nvme0n1"]).unwrap();
    assert_eq!(choice.rejected.len(), 2);
    assert!(choice.rejected.iter().all(|r| r.code == Code::TargetNotDisk && r.size.is_none()));
    assert_eq!(chosen(&t, &["mmcblk0boot0", "mmcblk0"]), "/dev/mmcblk0");
}

#[test]
fn volumes_are_not_disks() {
    let mut t = machine();
    t.disk("sdb", "8:16", 16 * GIB).mapped("dm-0", "252:0", GIB, "vg-root", "LVM-abc").stack("sdb", "dm-0");
    t.mapped("dm-1", "252:1", GIB, "secret", "CRYPT-LUKS2-abc").mapped("dm-2", "252:2", GIB, "thin", "x");
    t.mapped("dm-3", "252:3", 8 * GIB, "mpatha", "mpath-3600");
    t.link("/dev/mapper/vg-root", "../dm-0");
    skipped(&t, "mapper/vg-root", Code::TargetNotDisk, "LVM");
    skipped(&t, "dm-1", Code::TargetNotDisk, "encrypted");
    skipped(&t, "dm-2", Code::TargetNotDisk, "device-mapper");
    assert_eq!(chosen(&t, &["dm-3"]), "/dev/dm-3");
}

#[test]
fn a_disk_seen_twice_is_considered_once() {
    let mut t = machine();
    t.link("/dev/again", "sda");
    let choice = choose(&t, &["sda", "again", "sda", "gone", "gone", "nvme0n1"]).unwrap();
    assert_eq!(choice.rejected.len(), 2, "{:?}", choice.rejected);
}

#[test]
fn raid_members_are_passed_over() {
    let mut by_holder = machine();
    by_holder.disk("sdb", "8:16", 16 * GIB).part("sdb", "sdb1", "8:17", GIB);
    by_holder.array("md127", "9:127", 16 * GIB, "raid1").stack("sdb1", "md127");
    skipped(&by_holder, "sdb", Code::TargetRaidMember, "md127");

    let mut by_udev = machine();
    by_udev.disk("sdb", "8:16", 16 * GIB).udev("8:16", &[("ID_FS_TYPE", "linux_raid_member")]);
    skipped(&by_udev, "sdb", Code::TargetRaidMember, "linux_raid_member");
    by_udev.udev("8:16", &[("ID_FS_TYPE", "isw_raid_member")]);
    skipped(&by_udev, "sdb", Code::TargetRaidMember, "isw_raid_member");

    for (part, offset, major) in
        [(false, 4096, 1_u32), (true, 0, 1), (false, 64 * MIB - 8192, 1), (true, MIB - 65536, 0)]
    {
        let mut t = machine();
        t.disk("sdb", "8:16", 64 * MIB).part("sdb", "sdb1", "8:17", MIB);
        let head = [0xa92b_4efc_u32.to_le_bytes(), major.to_le_bytes()].concat();
        t.content(if part { "sdb1" } else { "sdb" }, if part { MIB } else { 64 * MIB }, offset, &head);
        skipped(&t, "sdb", Code::TargetRaidMember, if part { "sdb1: it has an MD" } else { "MD superblock" });
    }
}

#[test]
fn an_array_is_a_target_by_its_own_name() {
    let mut t = machine();
    t.disk("sdb", "8:16", 16 * GIB).disk("sdc", "8:32", 16 * GIB).array("md127", "9:127", 16 * GIB, "raid1");
    t.stack("sdb", "md127")
        .stack("sdc", "md127")
        .link("/dev/md/balena", "../md127")
        .link("/dev/md/disk", "../sdb");
    t.udev("9:127", &[("ID_FS_TYPE", "linux_raid_member")]); // an image of a member on it is its content
    let target = choose(&t, &["md/balena"]).unwrap().target;
    assert_eq!((target.name, target.dev), ("/dev/md/balena".into(), Some((9, 127))));
    skipped(&t, "md127", Code::TargetRaidMember, "udev");
    skipped(&t, "md/disk", Code::TargetRaidMember, "md127");
}
