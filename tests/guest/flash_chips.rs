//! The guests' flash memories are what they claim to be, seen from both sides.

use crate::support::{Disk, Guest, LIMIT, folder};

#[test]
fn a_nor_flash_is_the_file_of_the_host() {
    let dir = folder();
    let nor = dir.path().join("nor");
    std::fs::write(&nor, vec![0xff; 1 << 20]).unwrap();
    let Some(guest) = Guest::with_nor("a_nor_flash_is_the_file_of_the_host", &nor) else { return };
    let outcome = guest
        .script(
            "cat /sys/class/mtd/mtd0/type /sys/class/mtd/mtd0/erasesize >/host/chip
             echo bootloader >/tmp/a
             flashcp -v /tmp/a /dev/mtd0
             dd if=/dev/mtd0 bs=11 count=1 of=/host/read",
        )
        .run(LIMIT)
        .ok();
    assert_eq!(outcome.file("chip"), "nor\n4096\n");
    assert_eq!(&std::fs::read(&nor).unwrap()[..12], b"bootloader\n\xff");
    assert_eq!(outcome.file("read"), "bootloader\n");
}

#[test]
fn an_emmc_has_boot_partitions_in_the_file_of_the_host() {
    let Some(guest) = Guest::small("an_emmc_has_boot_partitions_in_the_file_of_the_host") else { return };
    let dir = folder();
    let image = dir.path().join("emmc");
    std::fs::File::create(&image).unwrap().set_len((64 << 20) + (2 << 20)).unwrap();
    let outcome = guest
        .disk(Disk::Emmc { boot: 1 << 20 }, &image, "")
        .script(
            "for i in $(seq 600); do [ -e /dev/mmcblk0boot1 ] && break; sleep 0.2; done
             cat /sys/block/mmcblk0boot0/force_ro /sys/block/mmcblk0boot1/size /sys/block/mmcblk0/size >/host/chip
             echo 0 >/sys/block/mmcblk0boot0/force_ro
             echo boot zero >/dev/mmcblk0boot0
             echo user >/dev/mmcblk0
             sync",
        )
        .run(LIMIT)
        .ok();
    assert_eq!(outcome.file("chip"), "1\n2048\n131072\n");
    let data = std::fs::read(&image).unwrap();
    assert_eq!(&data[..10], b"boot zero\n");
    assert_eq!(&data[2 << 20..][..5], b"user\n");
}
