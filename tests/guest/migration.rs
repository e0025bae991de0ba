//! The flasher in an initramfs, where the shell script of PID 1 calls it: without systemd, on the disk that the device was
//! started from. And power cuts at every write behind the image.

use std::path::Path;

use crate::bootpart::{self, Case, all_cases, check_done, every_cut, faults, old_disk, with_medium};
use crate::support::fat::{self, Node};
use crate::support::medium::{Image, noise, seconds, used_disk};
use crate::support::{Disk, Guest, LIMIT, Outcome, Shutdown, fat_image, folder, gpt_image, tool, writelog};

/// Takes a disk's flasher system to memory and starts the flasher there, as balenaOS's initramfs does: boot files to
/// `/mnt/boot`, `config.json` to `/mnt/boottmp`, the image to `/tmp`; then nothing of the disk is mounted any more.
const FIRST_PROGRAM: &str = r#"#!/bin/bash
. /lib/guest.sh
guest_mounts
mount -t tmpfs run /run
guest_modules
modprobe -a ext4 vfat
guest_host /host
guest_udev
ln -sfn /proc/self/fd /dev/fd
exec > >(tee /host/initramfs.log >/dev/console) 2>&1

mkdir -p /rootfs /tmp/flash-boot /mnt/boot /mnt/boottmp
mount -o ro "$(findfs LABEL=flash-rootA)" /rootfs
mount "$(findfs LABEL=flash-boot)" /tmp/flash-boot
. /rootfs/etc/resin-init-flasher.conf
cp "$(find /rootfs -xdev -type f -name "$BALENA_IMAGE")" /tmp
cp -r /tmp/flash-boot/* /mnt/boot
cp /tmp/flash-boot/config.json /mnt/boottmp/config.json
cp /rootfs/etc/resin-init-flasher.conf /etc
umount /tmp/flash-boot
umount /rootfs
ln -s copal /usr/bin/resin-init-flasher
echo "the log of the initramfs"
MORE
/usr/bin/resin-init-flasher
echo "$?" >/host/returned
exit 1
"#;

/// Boots a device with one disk, a flasher medium, whose first program migrates it, with `more` right before.
fn migrate(test: &str, more: &str) -> Option<(Outcome, Image, Vec<u8>)> {
    let guest = Guest::small(test)?;
    let dir = folder();
    let image = Image::new(dir.path(), 8);
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("root/etc")).unwrap();
    std::fs::create_dir_all(at("root/opt")).unwrap();
    std::fs::copy(&image.path, at("root/opt/balena.img")).unwrap();
    std::fs::write(
        at("root/etc/resin-init-flasher.conf"),
        "INTERNAL_DEVICE_KERNEL=\"sda nvme0n1 vda\"\nBALENA_IMAGE=balena.img\n\
         INTERNAL_DEVICE_BOOTLOADER_CONFIG=grub.cfg_internal\n\
         INTERNAL_DEVICE_BOOTLOADER_CONFIG_PATH=/EFI/BOOT/grub.cfg\n",
    )
    .unwrap();
    let (boot, root, disk) = (at("flash-boot"), at("flash-rootA"), at("disk"));
    fat_image(
        &boot,
        "flash-boot",
        16,
        &[
            ("balena-image-flasher", b"".as_slice()),
            ("config.json", b"{\"installer\": {\"migrate\": {\"force\": true}}, \"uuid\": \"abc\"}"),
            ("grub.cfg_internal", b"menuentry internal\n"),
            ("system-connections/cellular", b"a new connection\n"),
        ],
    );
    tool(&[
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-L",
        "flash-rootA",
        "-d",
        at("root").to_str().unwrap(),
        root.to_str().unwrap(),
        "64M",
    ]);
    gpt_image(&disk, &[("flash-boot", &boot), ("flash-rootA", &root)], 1);
    let outcome = guest
        .disk(Disk::Nvme, &disk, "INTERNAL")
        .copal()
        .init(&FIRST_PROGRAM.replace("MORE", more))
        .run(LIMIT);
    println!("took {:?}\n{}", outcome.took, outcome.file("initramfs.log"));
    assert!(!outcome.console.contains("Kernel panic"), "{}", outcome.console);
    assert!(!outcome.host().join("returned").exists(), "the flasher returned {}", outcome.file("returned"));
    let installed = image.assert_on(&disk);
    assert_eq!(installed.text("EFI/BOOT/grub.cfg"), "menuentry internal\n");
    assert_eq!(installed.text("config.json"), "{\n  \"uuid\": \"abc\"\n}\n");
    assert_eq!(installed.text("system-connections/cellular"), "a new connection\n");
    assert_eq!(installed.receipt()["target"]["name"], "/dev/nvme0n1");
    // Nobody to ask for a network.
    assert!(seconds(&installed.receipt(), "network") < 8.0);
    let logs: Vec<String> = installed.files().into_iter().filter(|f| f.starts_with("migration_")).collect();
    let log = match logs.as_slice() {
        [] => Vec::new(),
        [one] => {
            let time = one.strip_prefix("migration_").unwrap();
            let digits =
                time.chars().enumerate().all(|(n, c)| if n == 8 { c == 'T' } else { c.is_ascii_digit() });
            assert!(digits && time.len() == 13, "{one}");
            installed.file(one)
        }
        several => panic!("{several:?}"),
    };
    Some((outcome, image, log))
}

#[test]
fn a_disk_is_migrated_and_restarted() {
    // Somebody is connected until three seconds after the flasher has begun to wait for that.
    let more = r#"
echo POSTINSTALL_REBOOT=1 >>/etc/resin-init-flasher.conf
(
    (
        while ! grep -q 'waiting for adbd' /host/initramfs.log; do sleep 0.2; done
        sleep 3
        echo gone >/host/adbd
    ) &
    echo $! >/tmp/adbd
)
export ADBD_PID=$(cat /tmp/adbd) INITRAMFS_LOGFILE=/host/initramfs.log
"#;
    let Some((outcome, _, log)) = migrate("a_disk_is_migrated_and_restarted", more) else { return };
    assert_eq!(outcome.ending, Shutdown::Rebooted, "{}", outcome.console);
    assert_eq!(outcome.file("adbd"), "gone\n");
    let whole = outcome.file("initramfs.log").into_bytes();
    assert!(!log.is_empty() && whole.starts_with(&log), "{}", String::from_utf8_lossy(&log));
    let log = String::from_utf8(log).unwrap();
    for line in ["the log of the initramfs", "[resin-init-flasher][INFO]", "verify: done"] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

#[test]
fn an_initramfs_without_a_wish_is_powered_off() {
    let Some((outcome, _, log)) = migrate("an_initramfs_without_a_wish_is_powered_off", "") else { return };
    assert_eq!(outcome.ending, Shutdown::PoweredOff, "{}", outcome.console);
    assert!(log.is_empty(), "{}", String::from_utf8_lossy(&log));
}

/// Where the raw bootloader lies on the disk.
const LOADER: usize = 33 << 10;

/// An image with an old loader in front of the partitions, and old files in its boot partition.
fn old_image(dir: &Path, old: &[u8]) -> Image {
    let boot = dir.join("boot");
    old_disk(&boot, 6 << 20, &["-F", "16", "-s", "2"]);
    let mut image = Image::around(dir, &boot, 1);
    image.bytes[LOADER..][..old.len()].copy_from_slice(old);
    std::fs::write(&image.path, &image.bytes).unwrap();
    image
}

/// From the moment the disk holds the image, the power may go with any write: each boot file is the old or the new one, and
/// no loader is half there.
#[test]
fn a_power_cut_after_the_image_leaves_files_and_loader_old_or_new() {
    let test = "a_power_cut_after_the_image_leaves_files_and_loader_old_or_new";
    let Some(guest) = Guest::small(test) else { return };
    let dir = folder();
    let (old, new) = (noise(21, 200_000), noise(22, 200_000));
    let image = old_image(dir.path(), &old);
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("loader"), &new).unwrap();
    let mib = (image.bytes.len() >> 20) + 1;
    let (disk, log) = (used_disk(at("disk"), mib), at("log"));
    let before = std::fs::read(&disk).unwrap();
    let outcome = with_medium(guest.disk(Disk::Virtio, &disk, "DISK").logged(&log))
        .copal()
        .file(&at("loader"), "/medium/loader.img")
        .file(&image.path, "/opt/balena.img")
        .script(
            "mv /medium /mnt/boot
             {
                 cat /test/conf
                 echo 'INTERNAL_DEVICE_KERNEL=vda
                     BALENA_IMAGE=balena.img
                     BOOTLOADER_FLASH_DEVICE=vda
                     BOOTLOADER_IMAGE=loader.img
                     BOOTLOADER_BLOCK_SIZE_OFFSET=1024
                     BOOTLOADER_SKIP_OUTPUT_BLOCKS=33'
             } >/etc/resin-init-flasher.conf
             copal flash --no-power-off --receipt /host/receipt.json",
        )
        .run(LIMIT)
        .ok();
    let mut cases = all_cases();
    let receipt = outcome.file("receipt.json");
    for case in cases.iter_mut().filter(|c| c.path == "flash-receipt.json") {
        case.new = Some(receipt.clone().into_bytes());
    }
    let after = std::fs::read(&disk).unwrap();
    assert!(after[LOADER..][..new.len()] == new, "the loader");
    check_done(&fat::read(&after[image.boot.clone()]), &cases, "after the run");

    let (start, requests) = behind_the_image(&before, &image, writelog::read(&log));
    let loader = LOADER..LOADER + new.len();
    let mut seen = Seen::default();
    // In front of the partitions first: there is less of it, so more can be tried.
    let front = image.boot.start;
    let only: Vec<_> = requests.iter().map(|r| up_to(front, r)).collect();
    let mut cuts = every_cut(&start[..front], &only, true, |n, loss, disk| {
        let what = format!("cut after request {n} of {}, {loss:?}", only.len());
        assert!(disk[..LOADER] == start[..LOADER], "{what}: the partition table");
        assert!(disk[loader.end..] == start[loader.end..front], "{what}: behind the loader");
        seen.loader(&disk[loader.clone()], &old, &new, &what);
    });
    cuts += every_cut(&start, &requests, false, |n, loss, disk| {
        let what = format!("cut after request {n} of {}, {loss:?}", requests.len());
        assert!(disk[image.boot.end..] == start[image.boot.end..], "{what}: another partition");
        seen.files(&disk[image.boot.clone()], &cases, &what);
    });
    println!("took {:?}; {} requests, {cuts} cuts, {seen:?}", outcome.took, requests.len());
    assert!(seen.old > 0 && seen.neither > 1 && seen.new > 0, "{seen:?}");
    assert!(seen.leftovers > 0 && seen.mixed > 0, "{seen:?}");
    // What was reported as done is there, whatever the cache of the disk lost.
    let last = writelog::after_a_cut(&start, &requests, requests.len(), |_, _| false);
    assert!(last[loader] == new, "the loader was in the cache only");
    check_done(&fat::read(&last[image.boot.clone()]), &cases, "after a cut at the end");
}

/// The same request, without data where it lies behind `end`.
fn up_to(end: usize, request: &writelog::Request) -> writelog::Request {
    let in_front = request.at < end as u64;
    let (at, data) = if in_front { (request.at, request.data.clone()) } else { (0, Vec::new()) };
    writelog::Request { at, data, ..*request }
}

/// The disk when the image had been written and flushed to the medium, and what came after that.
fn behind_the_image(
    before: &[u8],
    image: &Image,
    mut requests: Vec<writelog::Request>,
) -> (Vec<u8>, Vec<writelog::Request>) {
    let mut disk = before.to_vec();
    let mut written = None;
    for (n, request) in requests.iter().enumerate() {
        request.apply(&mut disk);
        if written.is_none() && disk.starts_with(&image.bytes) {
            written = Some(n);
        }
        if written.is_some_and(|w| n > w) && request.flush {
            assert!(disk.starts_with(&image.bytes), "it was changed before the flush");
            return (disk, requests.split_off(n + 1));
        }
    }
    panic!("the image was never on the disk: {written:?} of {}", requests.len());
}

#[derive(Debug, Default)]
struct Seen {
    old: usize,
    new: usize,
    neither: usize,
    leftovers: usize,
    /// With old files and new ones.
    mixed: usize,
}

impl Seen {
    fn loader(&mut self, there: &[u8], old: &[u8], new: &[u8], what: &str) {
        if there == old {
            self.old += 1;
        } else if there == new {
            self.new += 1;
        } else {
            let head = &there[..512];
            assert!(head != &old[..512] && head != &new[..512], "{what}: a valid head over a wrong body");
            self.neither += 1;
        }
    }

    fn files(&mut self, partition: &[u8], cases: &[Case], what: &str) {
        let tree = fat::read(partition);
        let faults = faults(&tree, cases);
        assert!(faults.is_empty(), "{what}: {faults:#?}");
        self.leftovers += usize::from(tree.nodes.keys().any(|p| bootpart::is_temporary(p)));
        let is = |case: &&Case, data: &Option<Vec<u8>>| match tree.nodes.get(case.path) {
            Some(Node::File(Ok(there))) => Some(there) == data.as_ref(),
            _ => data.is_none(),
        };
        let changed = || cases.iter().filter(|c| c.old != c.new);
        self.mixed += usize::from(changed().any(|c| is(&c, &c.old)) && changed().any(|c| is(&c, &c.new)));
    }
}
