//! The small guest itself.

use std::time::Duration;

use crate::support::{Disk, Guest, LIMIT, Shutdown, folder, tool, writelog};

#[test]
fn a_small_guest_runs_copal_and_writes_a_vfat_disk() {
    let Some(guest) = Guest::small("a_small_guest_runs_copal_and_writes_a_vfat_disk") else { return };
    let dir = folder();
    let image = dir.path().join("fat.img");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    tool(&["mkfs.vfat", "-n", "GUEST", image.to_str().unwrap()]);
    let outcome = guest
        .disk(Disk::Virtio, &image, "fat")
        .module("vfat")
        .copal()
        .script(
            "copal --version >/host/version
             mount -t vfat /dev/vda /mnt
             echo from the guest >/mnt/file.txt
             umount /mnt",
        )
        .run(LIMIT)
        .ok();
    println!("took {:?}", outcome.took);
    assert!(outcome.file("version").starts_with(concat!("copal ", env!("CARGO_PKG_VERSION"), " (")));
    assert_eq!(tool(&["mtype", "-i", image.to_str().unwrap(), "::/file.txt"]), "from the guest\n");
}

/// The log of a disk's writes is complete: played back in full, it makes the disk the guest left. Played back up to the
/// point where the power went, it still has what was flushed before.
#[test]
fn the_write_log_of_a_disk_leads_to_its_contents() {
    let Some(guest) = Guest::small("the_write_log_of_a_disk_leads_to_its_contents") else { return };
    let dir = folder();
    let (image, log) = (dir.path().join("fat.img"), dir.path().join("log"));
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    tool(&["mkfs.vfat", image.to_str().unwrap()]);
    let before = std::fs::read(&image).unwrap();
    let outcome = guest
        .disk(Disk::Virtio, &image, "fat")
        .logged(&log)
        .module("vfat")
        .script(
            "mount -t vfat /dev/vda /mnt
             echo first >/mnt/first.txt
             sync /mnt/first.txt
             head -c 100000 /dev/zero | tr '\\0' x >/mnt/second.txt
             umount /mnt
             blkdiscard -z -o $((15 << 20)) -l 65536 /dev/vda
             echo marker: written >/dev/console
             sleep 1000",
        )
        .cut_at("marker: written")
        .run(LIMIT);
    assert_eq!((outcome.ending, outcome.status), (Shutdown::Cut, None), "{}", outcome.console);
    let after = std::fs::read(&image).unwrap();
    let requests = writelog::read(&log);
    let mut disk = before.clone();
    for request in &requests {
        request.apply(&mut disk);
    }
    assert!(disk == after && before != after, "{} requests", requests.len());

    // What had been synced is there in every case; what had not may be lost.
    let last = writelog::after_a_cut(&before, &requests, requests.len(), |_, _| false);
    assert!(disk != last);
    std::fs::write(&image, last).unwrap();
    assert_eq!(tool(&["mtype", "-i", image.to_str().unwrap(), "::/first.txt"]), "first\n");
}

/// A first program of the test's own, which restarts the machine: what an initramfs does.
#[test]
fn a_guest_may_have_an_init_of_its_own_and_restart() {
    let Some(guest) = Guest::small("a_guest_may_have_an_init_of_its_own_and_restart") else { return };
    let dir = folder();
    let disk = dir.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(8 << 20).unwrap();
    let outcome = guest
        .disk(Disk::Nvme, &disk, "DISK")
        .init(
            "#!/bin/sh
             . /lib/guest.sh
             guest_mounts; guest_modules; guest_host /host; guest_udev
             ls -l /dev/disk/by-id >/host/by-id
             echo PID $$ with $(cat /proc/cmdline)
             reboot -f",
        )
        .append("one.more=argument")
        .run(LIMIT);
    assert_eq!((outcome.ending, outcome.status), (Shutdown::Rebooted, None), "{}", outcome.console);
    assert!(outcome.file("by-id").contains("nvme-QEMU_NVMe_Ctrl_DISK"), "{}", outcome.file("by-id"));
    assert!(outcome.console.contains("PID 1 with"), "{}", outcome.console);
    assert!(outcome.console.contains("one.more=argument"), "{}", outcome.console);
}

#[test]
fn a_guest_that_hangs_is_ended_and_its_console_shown() {
    // A busy machine takes its time until the guest says anything.
    for seconds in [12, 60, 240] {
        let Some(guest) = Guest::small("a_guest_that_hangs_is_ended_and_its_console_shown") else { return };
        let limit = Duration::from_secs(seconds);
        let run = || guest.init("#!/bin/sh\necho it hangs now\nsleep 1000").run(limit);
        let Err(why) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) else {
            panic!("it ended")
        };
        let why = why.downcast_ref::<String>().unwrap();
        assert!(why.contains(&format!("has not ended after {seconds} s")), "{why}");
        if why.contains("it hangs now") {
            return;
        }
    }
    panic!("no guest said anything");
}

/// The kinds of disks that copal meets, under the names their drivers give them.
#[test]
fn a_guest_has_disks_of_every_kind() {
    let Some(guest) = Guest::small("a_guest_has_disks_of_every_kind") else { return };
    let dir = folder();
    let image = |name: &str, mib: u64| {
        let path = dir.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
        path
    };
    let outcome = guest
        .disk(Disk::Nvme, &image("nvme", 10), "NVME1")
        .option("logical_block_size=4096,physical_block_size=4096")
        .disk(Disk::Virtio, &image("virtio", 20), "VIRTIO1")
        .disk(Disk::Usb, &image("usb", 30), "USB1")
        .disk(Disk::SdCard, &image("card", 32), "")
        .script(
            "for i in $(seq 600); do [ -e /dev/sda ] && [ -e /dev/mmcblk0 ] && break; sleep 0.2; done
             for d in nvme0n1 vda sda mmcblk0; do
                 echo $d $(cat /sys/block/$d/size /sys/block/$d/queue/logical_block_size /sys/block/$d/removable)
             done >/host/disks
             cat /sys/block/nvme0n1/device/serial /sys/block/vda/serial >/host/serials",
        )
        .run(LIMIT)
        .ok();
    assert_eq!(
        outcome.file("disks"),
        "nvme0n1 20480 4096 0\nvda 40960 512 0\nsda 61440 512 1\nmmcblk0 65536 512 0\n"
    );
    assert_eq!(outcome.file("serials").split_whitespace().collect::<Vec<_>>(), ["NVME1", "VIRTIO1"]);
}
