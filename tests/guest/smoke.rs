//! The guests themselves.

use std::time::Duration;

use crate::support::medium::empty;
use crate::support::{Disk, Guest, LIMIT, Outcome, Shutdown, System, folder, tool, writelog};

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
        .blocks_of_4096()
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

/// Encrypts two disks of 64 MiB, first with LUKS2, then with plain dm-crypt and a key in the kernel's keyring.
const ENCRYPT: &str = r#"
# write_and_read MAPPING DISK MIB: data through the mapping; on the disk it begins at that MiB.
write_and_read() {
    [ -b "/dev/mapper/$1" ]
    head -c 1048576 /dev/urandom >/tmp/data
    dd if=/tmp/data of="/dev/mapper/$1" bs=1M oflag=direct conv=notrunc status=none
    dd if="/dev/mapper/$1" bs=1M count=1 iflag=direct status=none | cmp - /tmp/data
    dd if="$2" bs=1M skip="$3" count=1 iflag=direct status=none >/tmp/encrypted
    [ "$(wc -c </tmp/encrypted)" -eq 1048576 ]
    if cmp -s /tmp/encrypted /tmp/data; then exit 1; fi
}

# describe MAPPING DISK
describe() {
    mapped=$(basename "$(readlink -f "/dev/mapper/$1")")
    (cd "/sys/block/$mapped" && echo "$(cat dm/name)" "$(ls slaves)" "$(cat queue/logical_block_size)" "$(cat dm/uuid)")
    dmsetup table "$1"
}

# luks MAPPING DISK
luks() {
    printf 'a passphrase' | cryptsetup -q luksFormat --type luks2 --cipher aes-xts-plain64 --key-size 512 --hash sha256 \
        --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --offset 32768 --key-file - "$2"
    cryptsetup luksDump "$2" >"/host/$1.dump"
    printf 'a passphrase' | cryptsetup open --type luks2 --key-file - "$2" "$1"
    describe "$1" >"/host/$1"
    write_and_read "$1" "$2" 16
    cryptsetup close "$1"
    [ ! -e "/dev/mapper/$1" ]
}

# plain MAPPING DISK
plain() {
    sectors=$(($(blockdev --getsz "$2") - 2048))
    dmsetup create "$1" --table "0 $sectors crypt aes-cbc-plain :32:logon:copal-test: 0 $2 2048"
    describe "$1" >"/host/$1"
    write_and_read "$1" "$2" 1
    dmsetup remove "$1"
    [ ! -e "/dev/mapper/$1" ]
}

until [ -b /dev/vda ] && [ -b /dev/nvme0n1 ]; do sleep 0.1; done
before=$(cut -d. -f1 /proc/uptime)
exec 2>/host/warnings
luks luks512 /dev/vda
luks luks4096 /dev/nvme0n1
# A service has a session keyring (@s) without a link to its user's keys (@u). A small guest has no session keyring.
head -c 32 /dev/urandom | keyctl padd logon copal-test: @u >/dev/null
keyctl link @u @s
plain plain512 /dev/vda
plain plain4096 /dev/nvme0n1
echo $(($(cut -d. -f1 /proc/uptime) - before)) >/host/seconds
"#;

/// The disks of [`ENCRYPT`]: `/dev/vda`, and `/dev/nvme0n1` with blocks of 4096 bytes.
fn with_disks_to_encrypt(guest: Guest, dir: &std::path::Path) -> Guest {
    guest
        .disk(Disk::Virtio, &empty(dir.join("512"), 64), "B512")
        .disk(Disk::Nvme, &empty(dir.join("4096"), 64), "B4096")
        .blocks_of_4096()
        .module("dm_crypt")
}

/// What [`ENCRYPT`] wrote below `/host`.
fn assert_encrypted(outcome: &Outcome) {
    println!("took {:?}, of which encryption {} s", outcome.took, outcome.file("seconds").trim());
    assert_eq!(outcome.file("warnings"), "");
    for (block, disk, number) in [(512, "vda", "254:0"), (4096, "nvme0n1", "259:0")] {
        // cryptsetup uses sectors as large as the disk's physical blocks; dm-crypt itself always uses 512 bytes by default.
        let option = if block == 512 { "" } else { " 1 sector_size:4096" };
        let dump = outcome.file(&format!("luks{block}.dump"));
        let words = dump.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "Version: 2 ",
            "0: crypt offset: 16777216 [bytes] length: (whole device) cipher: aes-xts-plain64 ",
            &format!(" cipher: aes-xts-plain64 sector: {block} [bytes]"),
            "Key: 512 bits",
            "PBKDF: pbkdf2 Hash: sha256 Iterations: 1000",
            "Digests: 0: pbkdf2 Hash: sha256 Iterations: 1000",
        ] {
            assert!(words.contains(part), "no '{part}' in {dump}");
        }
        let uuid = words.split_once("UUID: ").unwrap().1.split(' ').next().unwrap();
        let plain_uuid = uuid.replace('-', "");
        assert_eq!(
            outcome.file(&format!("luks{block}")),
            format!(
                "luks{block} {disk} {block} CRYPT-LUKS2-{plain_uuid}-luks{block}\n\
                 0 98304 crypt aes-xts-plain64 :64:logon:cryptsetup:{uuid}-d0 0 {number} 32768{option}\n"
            )
        );
        assert_eq!(
            outcome.file(&format!("plain{block}")),
            format!(
                "plain{block} {disk} {block} \n0 129024 crypt aes-cbc-plain :32:logon:copal-test: 0 {number} 2048\n"
            )
        );
    }
}

/// With udev: without it, `dmsetup create` makes no `/dev/mapper/NAME` unless it is given `--verifyudev`.
#[test]
fn a_small_guest_can_encrypt() {
    let Some(guest) = Guest::small("a_small_guest_can_encrypt") else { return };
    let dir = folder();
    let script = format!(". /lib/guest.sh\nguest_udev\n{ENCRYPT}");
    assert_encrypted(&with_disks_to_encrypt(guest, dir.path()).script(&script).run(LIMIT).ok());
}

#[test]
fn a_system_guest_can_encrypt() {
    let test = "a_system_guest_can_encrypt";
    let Some(guest) = Guest::system(test, "LABEL=system") else { return };
    let Some(system) = System::new(test) else { return };
    let dir = folder();
    let root = dir.path().join("root");
    system.ext4(&root, "system", 400);
    let guest = with_disks_to_encrypt(guest, dir.path()).disk(Disk::Virtio, &root, "ROOT");
    assert_encrypted(&guest.script(ENCRYPT).run(LIMIT).ok());
}
