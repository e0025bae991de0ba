//! `copal bootloader write` on the kernel's own flash drivers: what it leaves on the chip, seen from outside.

use serde_json::Value;

use crate::support::medium::noise;
use crate::support::{Disk, Guest, LIMIT, Outcome, folder, writelog};

/// `copal bootloader write`, its exit status and report kept under a name.
const WRITE: &str = r#"
    write() {
        local name=$1 status=0
        shift
        copal bootloader write --json "$@" >/host/$name.json 2>/host/$name.err || status=$?
        echo $status >/host/$name.status
        echo "$name: $status" "$@"
    }"#;

/// The report of a write that succeeded.
fn report(outcome: &Outcome, name: &str) -> Value {
    assert_eq!(
        outcome.file(&format!("{name}.status")),
        "0\n",
        "{name}: {}",
        outcome.file(&format!("{name}.err"))
    );
    let value: Value = serde_json::from_str(&outcome.file(&format!("{name}.json"))).unwrap();
    value["bootloader"].clone()
}

/// What a refused write said.
fn refusal(outcome: &Outcome, name: &str) -> Value {
    assert_eq!(outcome.file(&format!("{name}.status")), "3\n", "{name}");
    serde_json::from_str(&outcome.file(&format!("{name}.json"))).unwrap()
}

/// Kind, whether anything changed, and the erase blocks that it took.
fn brief(report: &Value) -> (&str, bool, u64) {
    (
        report["kind"].as_str().unwrap(),
        report["changed"].as_bool().unwrap(),
        report["blocks_erased"].as_u64().unwrap(),
    )
}

#[test]
fn nor_flash_gets_the_loader_and_keeps_the_rest() {
    let dir = folder();
    let (nor, loader) = (dir.path().join("nor"), dir.path().join("loader"));
    let before = noise(1, 1 << 20);
    let image = noise(2, 10_000);
    std::fs::write(&nor, &before).unwrap();
    std::fs::write(&loader, &image).unwrap();
    let Some(guest) = Guest::with_nor("nor_flash_gets_the_loader_and_keeps_the_rest", &nor) else { return };
    let outcome = guest
        .copal()
        .file(&loader, "/loader")
        .script(&format!(
            "{WRITE}
             write first --target mtd0 --image /loader --block-size 1024 --seek 3
             write again --target mtdblock0 --image /loader --block-size 1024 --seek 3"
        ))
        .run(LIMIT)
        .ok();
    let mut expected = before;
    expected[3072..13_072].copy_from_slice(&image);
    assert!(std::fs::read(&nor).unwrap() == expected);
    assert_eq!(brief(&report(&outcome, "first")), ("mtd", true, 4));
    assert_eq!(brief(&report(&outcome, "again")), ("mtd", false, 0));
}

#[test]
fn an_emmc_boot_partition_is_protected_again() {
    let Some(guest) = Guest::small("an_emmc_boot_partition_is_protected_again") else { return };
    let dir = folder();
    let (emmc, loader) = (dir.path().join("emmc"), dir.path().join("loader"));
    let image = noise(3, 100_001);
    let mut before = noise(4, 2 << 20);
    before.resize(66 << 20, 0);
    std::fs::write(&emmc, &before).unwrap();
    std::fs::write(&loader, &image).unwrap();
    let outcome = guest
        .disk(Disk::Emmc { boot: 1 << 20 }, &emmc, "")
        .copal()
        .file(&loader, "/loader")
        .script(&format!(
            "{WRITE}
             for i in $(seq 600); do [ -e /dev/mmcblk0boot0 ] && break; sleep 0.2; done
             write boot0 --target mmcblk0boot0 --image /loader --block-size 512 --seek 2
             write again --target mmcblk0boot0 --image /loader --block-size 512 --seek 2
             write user --target mmcblk0 --image /loader --block-size 1024 --seek 33
             cat /sys/block/mmcblk0boot0/force_ro /sys/block/mmcblk0boot1/force_ro >/host/force_ro
             # Killed while it writes, it cannot protect the partition again. The unit's ExecStopPost does.
             f=/sys/block/mmcblk0boot1/force_ro
             for attempt in $(seq 20); do
                 head -c 1000000 /dev/urandom >/large
                 copal bootloader write --target mmcblk0boot1 --image /large >/dev/null & pid=$!
                 while kill -0 $pid 2>/dev/null; do read -r ro <$f; [ $ro = 1 ] || break; done
                 kill -9 $pid 2>/dev/null || true
                 wait $pid || true
                 read -r ro <$f
                 [ $ro = 1 ] || break
             done
             echo $ro >/host/killed
             copal bootloader protect
             cat $f >>/host/killed
             write mended --target mmcblk0boot1 --image /loader
             # Protected by the chip itself, until it is switched off: what is there already is no fault.
             echo 1 >/sys/block/mmcblk0boot0/ro_lock_until_next_power_on
             cat /sys/block/mmcblk0boot0/ro_lock_until_next_power_on >/host/locked
             write kept --target mmcblk0boot0 --image /loader --block-size 512 --seek 2
             copal bootloader write --target mmcblk0boot0 --image /large 2>>/host/locked && exit 1
             [ $? = 3 ]"
        ))
        .run(LIMIT)
        .ok();
    let mut expected = before;
    expected[1024..][..image.len()].copy_from_slice(&image);
    expected[(2 << 20) + (33 << 10)..][..image.len()].copy_from_slice(&image);
    let mut found = std::fs::read(&emmc).unwrap();
    // Behind the loader that was written last, boot1 holds what the killed writes left.
    assert!(found[1 << 20..][..image.len()] == image);
    found[1 << 20..2 << 20].copy_from_slice(&expected[1 << 20..2 << 20]);
    assert!(found == expected);
    assert_eq!(outcome.file("force_ro"), "1\n1\n");
    assert_eq!(outcome.file("killed"), "0\n1\n", "left writable by SIGKILL, then protected");
    let locked = outcome.file("locked");
    assert!(locked.starts_with("1\n") && locked.contains("[target-read-only]"), "{locked}");
    assert_eq!(brief(&report(&outcome, "kept")), ("mmc-boot", false, 0));
    assert_eq!(brief(&report(&outcome, "mended")), ("mmc-boot", true, 0));
    assert_eq!(brief(&report(&outcome, "boot0")), ("mmc-boot", true, 0));
    assert_eq!(brief(&report(&outcome, "again")), ("mmc-boot", false, 0));
    assert_eq!(brief(&report(&outcome, "user")), ("region", true, 0));
}

#[test]
fn raw_flash_of_other_drivers() {
    let Some(guest) = Guest::small("raw_flash_of_other_drivers") else { return };
    let dir = folder();
    let loader = dir.path().join("loader");
    std::fs::write(&loader, noise(5, 200_000)).unwrap();
    let outcome = guest
        .module("mtdram total_size=1024 erase_size=64")
        .module("nandsim first_id_byte=0x20 second_id_byte=0x33")
        .module("mtdblock")
        .copal()
        .file(&loader, "/loader")
        .script(&format!(
            "{WRITE}
             cat /proc/mtd
             head -c 1048576 /dev/urandom >/old
             flashcp /old /dev/mtd0
             write first --target mtd:'mtdram test device' --image /loader --block-size 64K --seek 1
             write again --target mtdblock0 --image /loader --block-size 64K --seek 1
             cp /old /new; dd if=/loader of=/new bs=65536 seek=1 conv=notrunc
             cmp /new /dev/mtd0
             rm /dev/mtd0 /dev/mtd0ro
             printf X | dd of=/loader bs=1 seek=150000 conv=notrunc
             write block --target mtdblock0 --image /loader --block-size 64K --seek 1
             dd if=/loader of=/new bs=65536 seek=1 conv=notrunc
             echo 3 >/proc/sys/vm/drop_caches
             cmp /new /dev/mtdblock0
             write beyond --target mtdblock0 --image /loader --block-size 64K --seek 15
             write nand --target mtd1 --image /loader
             cmp /new /dev/mtdblock0"
        ))
        .run(LIMIT)
        .ok();
    assert_eq!(brief(&report(&outcome, "first")), ("mtd", true, 4));
    assert_eq!(brief(&report(&outcome, "again")), ("mtd", false, 0));
    let block = report(&outcome, "block");
    assert_eq!((&block["device"], &block["changed"]), (&"/dev/mtdblock0".into(), &true.into()));
    assert_eq!(refusal(&outcome, "beyond")["code"], "span-outside-device");
    let nand = refusal(&outcome, "nand");
    assert_eq!(nand["code"], "flash-device-unsupported");
    assert!(nand["hint"].as_str().unwrap().contains("nandwrite"), "{nand}");
}

/// Whatever a power cut leaves of a loader must not be started: either the old one is whole, or the new one, or the place
/// where the boot ROM looks holds neither.
#[test]
fn a_power_cut_leaves_no_half_loader_on_nor_flash() {
    let dir = folder();
    let (nor, log, loader) = (dir.path().join("nor"), dir.path().join("log"), dir.path().join("loader"));
    let before = noise(6, 128 << 10);
    let image = noise(7, 20_000);
    std::fs::write(&nor, &before).unwrap();
    std::fs::write(&loader, &image).unwrap();
    let Some(guest) = Guest::with_nor("a_power_cut_leaves_no_half_loader_on_nor_flash", &nor) else { return };
    let outcome = guest
        .pflash_logged(&log)
        .copal()
        .file(&loader, "/loader")
        .script(&format!("{WRITE}\nwrite all --target mtd0 --image /loader --block-size 4K --seek 2"))
        .run(LIMIT)
        .ok();
    report(&outcome, "all");
    let span = 8192..8192 + image.len();
    let mut disk = before.clone();
    let (mut neither, requests) = (0, writelog::read(&log));
    for (n, request) in requests.iter().enumerate() {
        request.apply(&mut disk);
        let whole = disk == before || disk[span.clone()] == image;
        if !whole {
            let head = &disk[span.start..][..512];
            assert!(head != &before[span.start..][..512] && head != &image[..512], "after write {n}");
            neither += 1;
        }
        assert!(disk[..span.start] == before[..span.start], "after write {n}");
    }
    assert!(neither > 1 && disk[span.clone()] == image);
    assert!(disk[span.end..] == before[span.end..]);
}

/// The same on a disk, whose cache may keep any part of what was written since the last flush.
#[test]
fn a_power_cut_leaves_no_half_loader_on_a_disk() {
    let Some(guest) = Guest::small("a_power_cut_leaves_no_half_loader_on_a_disk") else { return };
    let dir = folder();
    let (disk, log, loader) = (dir.path().join("disk"), dir.path().join("log"), dir.path().join("loader"));
    let before = noise(8, 1 << 20);
    let image = noise(9, 300_100);
    std::fs::write(&disk, &before).unwrap();
    std::fs::write(&loader, &image).unwrap();
    let outcome = guest
        .disk(Disk::Virtio, &disk, "DISK")
        .logged(&log)
        .copal()
        .file(&loader, "/loader")
        .script(&format!("{WRITE}\nwrite all --target vda --image /loader --block-size 1K --seek 33"))
        .run(LIMIT)
        .ok();
    assert_eq!(brief(&report(&outcome, "all")), ("region", true, 0));
    let span = 33_792..33_792 + image.len();
    let requests = writelog::read(&log);
    let mut random = fastrand::Rng::with_seed(10);
    let mut neither = 0;
    for n in 0..=requests.len() {
        for share in [0, 50, 50, 50, 100] {
            let after = writelog::after_a_cut(&before, &requests, n, |_, _| random.u32(..100) < share);
            assert!(after[..span.start] == before[..span.start] && after[span.end..] == before[span.end..]);
            if after != before && after[span.clone()] != image {
                let head = &after[span.start..][..512];
                assert!(head != &before[span.start..][..512] && head != &image[..512], "after request {n}");
                neither += 1;
            }
        }
    }
    assert!(neither > 1);
    // What was reported as written is there, whatever the cache lost.
    let after = writelog::after_a_cut(&before, &requests, requests.len(), |_, _| false);
    assert!(after[span] == image);
}
