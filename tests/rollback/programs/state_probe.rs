use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use copal::rollback::state_probe::properties;

use crate::kit::process::HANG;
use crate::kit::tree::{GIB, Tree};

const A: &str = "ba1eadef-1234-4cde-8f01-23456789abcd";
const B: &str = "ba1eadef-0000-4cde-8f01-23456789abcd";

/// The superblock of an ext4, as far as it matters: magic, UUID, label (`Documentation/filesystems/ext4/super.rst`).
fn ext4(uuid: &str, label: &str) -> Vec<u8> {
    let mut block = vec![0; 1024];
    block[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
    let hex: String = uuid.chars().filter(|c| *c != '-').collect();
    for at in 0..16 {
        block[0x68 + at] = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    }
    block[0x78..0x78 + label.len()].copy_from_slice(label.as_bytes());
    block
}

fn root(t: &mut Tree, name: &str, uuid: &str, label: &str) {
    t.content(name, 4096, 1024, &ext4(uuid, label));
}

/// A disk with boot, A, B and state.
fn disk(t: &mut Tree, name: &str, major: u32, part: &str) {
    t.disk(name, &format!("{major}:0"), 16 * GIB);
    for n in [1, 2, 3, 5] {
        t.part(name, &format!("{name}{part}{n}"), &format!("{major}:{n}"), GIB);
    }
    root(t, &format!("{name}{part}2"), A, "resin-rootA");
    root(t, &format!("{name}{part}3"), B, "resin-rootB");
}

fn device(cmdline: &str) -> Tree {
    let mut t = Tree::new();
    t.file("/proc/cmdline", cmdline);
    disk(&mut t, "mmcblk0", 179, "p");
    t
}

#[track_caller]
fn asked(t: &Tree, args: &[&str]) -> String {
    properties(&t.paths(), &args.iter().map(OsString::from).collect::<Vec<_>>()).unwrap()
}

const USE_A: &str = "BALENA_FS_USE=resin-rootA\nBALENA_UPDATE_STATE=active\n";
const USE_B: &str = "BALENA_FS_USE=resin-rootB\nBALENA_UPDATE_STATE=inactive\n";

#[test]
fn partitions_of_the_disk_of_the_root() {
    for cmdline in [
        format!("console=ttyS0 root=UUID={A} rootwait\n"),
        format!("root=UUID={}", A.to_uppercase()),
        "quiet root=LABEL=resin-rootA\n".to_owned(),
    ] {
        let t = device(&cmdline);
        assert_eq!(asked(&t, &["/dev/mmcblk0p2", "resin-rootA", "mmcblk0"]), USE_A, "{cmdline}");
        assert_eq!(asked(&t, &["/dev/mmcblk0p3", "resin-rootB", "mmcblk0"]), USE_B, "{cmdline}");
        assert_eq!(asked(&t, &["/dev/mmcblk0p5", "resin-state", "mmcblk0"]), "BALENA_FS_USE=resin-state\n");
        // By the name in the partition table; encoded as udev does.
        assert_eq!(asked(&t, &["/dev/mmcblk0p1", "BSP\\x20x", "mmcblk0"]), "BALENA_FS_USE=BSP\\x20x\n");
        assert_eq!(
            asked(&t, &["/dev/mmcblk0p3", "balena-rootB", "mmcblk0"]),
            "BALENA_FS_USE=balena-rootB\nBALENA_UPDATE_STATE=inactive\n"
        );
    }
}

#[test]
fn another_disk_gets_nothing_not_even_a_copy_of_this_one() {
    let mut t = device(&format!("root=UUID={A}"));
    disk(&mut t, "sda", 8, "");
    t.mount("179:2", "/mnt/sysroot/active", "ext4", "/dev/mmcblk0p2", "ro");
    assert_eq!(asked(&t, &["/dev/sda2", "resin-rootA", "sda"]), "");
    assert_eq!(asked(&t, &["/dev/sda1", "resin-boot", "sda"]), "");
    assert_eq!(asked(&t, &["/dev/mmcblk0p2", "resin-rootA", "mmcblk0"]), USE_A);
    // A whole disk with a label of ours, or a device that nobody knows.
    assert_eq!(asked(&t, &["/dev/sda", "resin-data"]), "");
    assert_eq!(asked(&t, &["/dev/sdb1", "resin-data", "sdb"]), "");
}

#[test]
fn an_encrypted_root() {
    let mut t = Tree::new();
    t.file("/proc/cmdline", &format!("root=UUID={A}"));
    t.disk("sda", "8:0", 16 * GIB);
    for n in 1..4 {
        t.part("sda", &format!("sda{n}"), &format!("8:{n}"), GIB);
    }
    for (n, name, uuid) in [(0, "luks-a", A), (1, "luks-b", B)] {
        let dm = format!("dm-{n}");
        t.mapped(&dm, &format!("253:{n}"), GIB, name, &format!("CRYPT-LUKS2-{n}"));
        t.stack(&format!("sda{}", n + 2), &dm);
        root(&mut t, &dm, uuid, if n == 0 { "resin-rootA" } else { "resin-rootB" });
    }
    assert_eq!(asked(&t, &["/dev/dm-0", "resin-rootA", ""]), USE_A);
    assert_eq!(asked(&t, &["/dev/dm-1", "resin-rootB"]), USE_B);
    // The boot partition that is not encrypted, on the same disk.
    assert_eq!(asked(&t, &["/dev/sda1", "balena-efi", "sda"]), "BALENA_FS_USE=balena-efi\n");
}

#[test]
fn a_mirrored_root_is_that_of_the_array() {
    let mut t = Tree::new();
    t.file("/proc/cmdline", &format!("root=UUID={A}"));
    for (disk, major) in [("sda", 8), ("sdb", 9)] {
        t.disk(disk, &format!("{major}:0"), 16 * GIB);
        t.part(disk, &format!("{disk}2"), &format!("{major}:2"), GIB);
        // The superblock of the array is at the end: the member shows the same file system.
        root(&mut t, &format!("{disk}2"), A, "resin-rootA");
    }
    t.array("md127", "259:0", 16 * GIB, "raid1").stack("sda", "md127").stack("sdb", "md127");
    t.part("md127", "md127p2", "259:2", GIB).part("md127", "md127p3", "259:3", GIB);
    root(&mut t, "md127p2", A, "resin-rootA");
    root(&mut t, "md127p3", B, "resin-rootB");
    assert_eq!(asked(&t, &["/dev/md127p2", "resin-rootA", "md127"]), USE_A);
    assert_eq!(asked(&t, &["/dev/md127p3", "resin-rootB", "md127"]), USE_B);
    assert_eq!(asked(&t, &["/dev/sda2", "resin-rootA", "sda"]), "");
}

#[test]
fn new_uuids_of_this_boot_come_before_the_command_line() {
    let mut t = device("root=UUID=00000000-0000-0000-0000-000000000000");
    assert_eq!(asked(&t, &["/dev/mmcblk0p2", "resin-rootA", "mmcblk0"]), "");
    t.file("/tmp/initramfs/bootparam_root", &format!("UUID={A}\n"));
    assert_eq!(asked(&t, &["/dev/mmcblk0p2", "resin-rootA", "mmcblk0"]), USE_A);
    // Newer releases have it elsewhere, and make it while udev is at work.
    t.folder("/run/initramfs").file("/run/initramfs/bootparam_root.mux", "");
    let mux = t.paths().at("/run/initramfs/bootparam_root.mux");
    let start = Instant::now();
    let told = thread::scope(|scope| {
        let asking = scope.spawn(|| asked(&t, &["/dev/mmcblk0p2", "resin-rootA", "mmcblk0"]));
        thread::sleep(Duration::from_millis(300));
        std::fs::write(mux.with_extension(""), format!("UUID={A}\n")).unwrap();
        std::fs::remove_file(&mux).unwrap();
        asking.join().unwrap()
    });
    assert_eq!(told, USE_A);
    // Not for ever.
    std::fs::write(&mux, "").unwrap();
    assert_eq!(asked(&t, &["/dev/mmcblk0p2", "resin-rootA", "mmcblk0"]), "");
    assert!(start.elapsed() < HANG);
}

#[test]
fn without_a_root_that_is_known_nothing_is_said() {
    for cmdline in ["", "root=/dev/mmcblk0p2", "root=PARTUUID=1234-02", "quiet"] {
        let t = device(cmdline);
        assert_eq!(asked(&t, &["/dev/mmcblk0p2", "resin-rootA", "mmcblk0"]), "", "{cmdline}");
    }
    let mut t = device(&format!("root=UUID={A}"));
    root(&mut t, "mmcblk0p2", B, "resin-rootA");
    t.mapped("dm-0", "253:0", GIB, "luks-a", "CRYPT-LUKS2-0").stack("mmcblk0p2", "dm-0");
    assert_eq!(asked(&t, &["/dev/dm-0", "resin-rootA", ""]), "");
    assert_eq!(asked(&t, &["/dev/dm-0", "resin-data", ""]), "BALENA_FS_USE=resin-data\n");
}

#[test]
fn wrong_arguments() {
    let t = device(&format!("root=UUID={A}"));
    for args in [&[][..], &["/dev/sda1"], &["", "x"], &["/dev/sda1", ""], &["/dev/sda1", "a\nB=1", "sda"]] {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let e = properties(&t.paths(), &args).unwrap_err();
        assert_eq!(e.code(), copal::error::Code::Usage, "{args:?}");
    }
}

/// Every user may create `/tmp/initramfs` on releases without `/run/initramfs`, and udev waits for this program as root.
#[test]
fn a_record_that_another_user_has_planted_neither_stops_the_probe_nor_counts() {
    let mut t = device(&format!("root=UUID={A}"));
    t.file("/tmp/other", &format!("UUID={B}\n")).folder("/tmp/initramfs");
    let record = t.paths().at("/tmp/initramfs/bootparam_root");
    let active = || {
        let paths = t.paths();
        let (done, waiting) = std::sync::mpsc::channel();
        let args = ["/dev/mmcblk0p2", "resin-rootA", "mmcblk0"].map(OsString::from);
        thread::spawn(move || done.send(properties(&paths, &args).unwrap()));
        waiting.recv_timeout(HANG).expect("the probe hangs")
    };
    nix::unistd::mkfifo(&record, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(active(), USE_A, "a pipe");
    std::fs::remove_file(&record).unwrap();
    std::os::unix::fs::symlink("../other", &record).unwrap();
    assert_eq!(active(), USE_A, "a link");
    std::fs::remove_file(&record).unwrap();
    std::fs::write(&record, vec![b' '; 1 << 20]).unwrap();
    assert_eq!(active(), USE_A, "a file without end");
    if crate::kit::needs::is_root("a record of another user") {
        std::fs::write(&record, format!("UUID={B}\n")).unwrap();
        std::os::unix::fs::chown(&record, Some(65534), None).unwrap();
        assert_eq!(active(), USE_A, "a file of another user");
    }
}
