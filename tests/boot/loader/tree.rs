//! eMMC boot partitions and raw flash in a made-up root folder, where plain files replace devices.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use copal::bootloader::{Compared, StorageKind, Write, Written, mmcboot, mtd, prepare};
use copal::config::paths::Paths;
use copal::error::{Code, Effect, Error};

use super::disk::noise;

pub struct Root {
    pub dir: tempfile::TempDir,
}

impl Root {
    pub fn new() -> Root {
        // Not in /tmp, which may be a tmpfs: direct I/O needs a disk.
        let root = Root { dir: tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap() };
        fs::create_dir_all(root.at("dev")).unwrap();
        root.put("proc/self/mountinfo", "");
        root
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn put(&self, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), content).unwrap();
        self.at(path)
    }

    pub fn boot_partition(&self, name: &str, size: usize) {
        self.put(&format!("dev/{name}"), vec![0x11; size]);
        self.put(&format!("sys/block/{name}/force_ro"), "1\n");
        self.put(&format!("sys/block/{name}/size"), (size / 512).to_string());
    }

    pub fn force_ro(&self, name: &str) -> String {
        fs::read_to_string(self.at(&format!("sys/block/{name}/force_ro"))).unwrap().trim().to_owned()
    }

    /// 256 KiB in erase blocks of 4 KiB.
    pub fn flash(&self, index: u32, name: &str, kind: &str, flags: &str) {
        let folder = format!("sys/class/mtd/mtd{index}");
        let values =
            [("type", kind), ("flags", flags), ("name", name), ("size", "262144"), ("erasesize", "4096")];
        for (key, value) in values.into_iter().chain([("writesize", "1")]) {
            self.put(&format!("{folder}/{key}"), format!("{value}\n"));
        }
        fs::create_dir_all(self.at(&format!("{folder}ro"))).unwrap();
        self.put(&format!("dev/mtdblock{index}"), noise(262_144, u64::from(index)));
    }

    fn paths(&self) -> Paths {
        Paths::new(self.dir.path())
    }

    fn prepared(
        &self,
        device: &str,
        image: &[u8],
        offset: u64,
    ) -> Result<copal::bootloader::Prepared, Error> {
        let image = self.put("image", image);
        prepare(&Write { device: device.into(), image, offset }, &self.paths(), None)
    }

    fn write(&self, device: &str, image: &[u8], offset: u64) -> Result<Written, Error> {
        self.prepared(device, image, offset)?.run()
    }

    fn compare(&self, device: &str, image: &[u8], offset: u64) -> Compared {
        self.prepared(device, image, offset).unwrap().compare().unwrap()
    }

    #[track_caller]
    fn refused(&self, device: &str, len: usize, offset: u64, code: Code, words: &[&str]) {
        let e = self.write(device, &vec![3; len], offset).unwrap_err();
        assert_eq!((e.code(), e.effect()), (code, Effect::Refused), "{e}");
        for word in words {
            assert!(e.to_string().contains(word), "{word:?}: {e}");
        }
    }
}

#[test]
fn an_emmc_boot_partition_is_protected_again_whatever_it_was() {
    let root = Root::new();
    root.boot_partition("mmcblk2boot0", 1 << 20);
    let image = noise(100_001, 3);
    let written = root.write("mmcblk2boot0", &image, 33 * 1024).unwrap();
    assert_eq!((written.kind, written.changed, written.blocks_erased), (StorageKind::MmcBoot, true, 0));
    let mut want = vec![0x11; 1 << 20];
    want[33 * 1024..33 * 1024 + 100_001].copy_from_slice(&image);
    assert!(fs::read(root.at("dev/mmcblk2boot0")).unwrap() == want);
    assert_eq!(root.force_ro("mmcblk2boot0"), "1");
    // Nothing to do: the protection is not even lifted.
    let touched = || fs::metadata(root.at("sys/block/mmcblk2boot0/force_ro")).unwrap().modified().unwrap();
    let before = touched();
    assert!(!root.write("/dev/mmcblk2boot0", &image, 33 * 1024).unwrap().changed);
    assert_eq!(touched(), before);
    root.put("sys/block/mmcblk2boot0/force_ro", "0\n");
    assert!(root.write("mmcblk2boot0", &noise(9, 1), 0).unwrap().changed);
    assert_eq!(root.force_ro("mmcblk2boot0"), "0");
    root.refused("mmcblk2boot0", 2, (1 << 20) - 1, Code::SpanOutsideDevice, &["mmcblk2boot0", "1048576"]);
}

#[test]
fn an_emmc_boot_partition_is_protected_again_after_an_error() {
    let root = Root::new();
    root.boot_partition("mmcblk0boot1", 1 << 20);
    let holder = File::open(root.at("dev/mmcblk0boot1")).unwrap();
    #[allow(deprecated)] // the owning type takes the file away
    nix::fcntl::flock(holder.as_raw_fd(), nix::fcntl::FlockArg::LockExclusive).unwrap();
    root.refused("mmcblk0boot1", 10, 0, Code::Busy, &["mmcblk0boot1"]);
    assert_eq!(root.force_ro("mmcblk0boot1"), "1");
    drop(holder);
    // A protection that cannot be lifted.
    let force_ro = root.at("sys/block/mmcblk0boot1/force_ro");
    fs::remove_file(&force_ro).unwrap();
    symlink("/dev/null", &force_ro).unwrap();
    root.refused("mmcblk0boot1", 10, 0, Code::TargetReadOnly, &["write protection", "mmcblk0boot1"]);
    assert!(fs::read(root.at("dev/mmcblk0boot1")).unwrap().iter().all(|b| *b == 0x11));
}

/// The kernel's own flag is not set then, and the first write would fail.
#[test]
fn a_boot_partition_that_the_chip_protects_is_refused_unless_all_is_there() {
    let root = Root::new();
    root.boot_partition("mmcblk0boot0", 1 << 20);
    let there = vec![0x11; 1000];
    for (lock, words) in [("1\n", "until it is switched off"), ("2\n", "for ever")] {
        root.put("sys/block/mmcblk0boot0/ro_lock_until_next_power_on", lock);
        root.refused("mmcblk0boot0", 10, 0, Code::TargetReadOnly, &[words, "mmcblk0boot0"]);
        let e = root.prepared("mmcblk0boot0", &[3; 10], 0).unwrap().ensure_writable().unwrap_err();
        assert_eq!(e.code(), Code::TargetReadOnly, "{e}");
        root.prepared("mmcblk0boot0", &there, 0).unwrap().ensure_writable().unwrap();
        assert!(!root.write("mmcblk0boot0", &there, 0).unwrap().changed);
        assert!(!root.compare("mmcblk0boot0", &[3; 10], 0).identical, "looking is not refused");
    }
    assert!(fs::read(root.at("dev/mmcblk0boot0")).unwrap().iter().all(|b| *b == 0x11));
    assert_eq!(root.force_ro("mmcblk0boot0"), "1");
    root.put("sys/block/mmcblk0boot0/ro_lock_until_next_power_on", "0\n");
    assert!(root.write("mmcblk0boot0", &[3; 10], 0).unwrap().changed);
}

#[test]
fn boot_partitions_are_listed_with_the_active_one_and_protected_together() {
    let root = Root::new();
    for name in ["mmcblk0boot0", "mmcblk0boot1", "mmcblk1boot0"] {
        root.boot_partition(name, 4096);
        root.put(&format!("sys/block/{name}/force_ro"), "0\n");
    }
    root.put("sys/block/mmcblk0/size", "8192");
    root.put("sys/block/mmcblk0boot7/size", "8192");
    symlink("../../devices/mmc0:0001", root.at("sys/block/mmcblk0/device")).unwrap();
    // Byte 179: acknowledge, boot1, access to the user area.
    let mut csd = vec![b'0'; 1024];
    csd[358..360].copy_from_slice(b"50");
    root.put("sys/kernel/debug/mmc0/mmc0:0001/ext_csd", csd);
    let found = mmcboot::list(&root.paths());
    let list: Vec<_> = found.iter().map(|b| (b.name.as_str(), b.force_ro, b.active)).collect();
    assert_eq!(
        list,
        [
            ("mmcblk0boot0", Some(false), Some(false)),
            ("mmcblk0boot1", Some(false), Some(true)),
            ("mmcblk0boot7", None, Some(false)),
            ("mmcblk1boot0", Some(false), None)
        ]
    );
    assert_eq!(found[0].size, Some(4096));
    let done = mmcboot::protect(&root.paths()).unwrap();
    assert_eq!(done, ["mmcblk0boot0", "mmcblk0boot1", "mmcblk1boot0"]);
    assert!(done.iter().all(|name| root.force_ro(name) == "1"));
}

#[test]
fn without_a_character_device_whole_erase_blocks_go_through_the_block_device() {
    let root = Root::new();
    root.flash(0, "u-boot", "nor", "0xc00");
    let before = noise(262_144, 0);
    let image = noise(10_000, 5);
    let compared = root.compare("mtd0", &image, 1024);
    assert!(!compared.identical && compared.would_write == 3 * 4096);
    assert_eq!(fs::read(root.at("dev/mtdblock0")).unwrap(), before);
    let written = root.write("mtdblock0", &image, 1024).unwrap();
    assert_eq!((written.kind, written.device), (StorageKind::Mtd, root.at("dev/mtdblock0")));
    // The first block twice: made invalid, then written last.
    assert_eq!((written.blocks_erased, written.bytes_written), (4, 4 * 4096));
    let mut want = before;
    want[1024..11_024].copy_from_slice(&image);
    assert!(fs::read(root.at("dev/mtdblock0")).unwrap() == want);
    for name in ["mtd0", "/dev/mtd0", "mtdblock0", "/dev/mtdblock0", "mtd:u-boot", "mtd0ro"] {
        let again = root.write(name, &image, 1024).unwrap();
        assert_eq!((again.changed, again.blocks_erased, again.bytes_written), (false, 0, 0), "{name}");
    }
    assert!(root.compare("mtd:u-boot", &image, 1024).identical);
    let mut last = image.clone();
    last[9_999] ^= 1;
    assert_eq!(root.write("mtd0", &last, 1024).unwrap().blocks_erased, 3);
}

#[test]
fn flash_that_cannot_take_a_loader_is_refused_with_a_reason() {
    let root = Root::new();
    root.flash(0, "rom", "rom", "0x0");
    root.flash(1, "nand", "nand", "0x400");
    root.flash(2, "mlc", "mlc-nand", "0x400");
    root.flash(3, "protected", "nor", "0x0");
    root.flash(4, "twin", "nor", "0xc00");
    root.flash(5, "twin", "nor", "0xc00");
    root.flash(6, "ubi", "nor", "0xc00");
    root.flash(7, "gone", "nor", "0xc00");
    root.flash(8, "volume", "ubi", "0x400");
    root.flash(9, "odd", "nor", "0xc00");
    root.put("sys/class/mtd/mtd9/erasesize", "0\n");
    root.put("sys/class/ubi/ubi0/mtd_num", "6\n");
    fs::remove_file(root.at("dev/mtdblock7")).unwrap();
    root.put("proc/self/mountinfo", "36 35 31:5 / /mnt/flash rw - jffs2 mtd5 rw\n");
    root.refused("mtd0", 9, 0, Code::FlashDeviceUnsupported, &["rom"]);
    root.refused("mtd1", 9, 0, Code::FlashDeviceUnsupported, &["NAND", "nandwrite", "kobs-ng"]);
    root.refused("mtdblock2", 9, 0, Code::FlashDeviceUnsupported, &["nandwrite"]);
    root.refused("mtd3", 9, 0, Code::TargetReadOnly, &["write-protected"]);
    root.refused("mtd4", 9, 262_140, Code::SpanOutsideDevice, &["262144"]);
    root.refused("mtd:twin", 9, 0, Code::FlashDeviceMissing, &["2 MTD devices"]);
    root.refused("mtd:none", 9, 0, Code::FlashDeviceMissing, &["no MTD device", "rom"]);
    root.refused("mtd5", 9, 0, Code::SpanOverFileSystem, &["/mnt/flash"]);
    root.refused("mtd:ubi", 9, 0, Code::SpanOverFileSystem, &["UBI"]);
    root.refused("mtd7", 9, 0, Code::FlashDeviceMissing, &["mtd7"]);
    root.refused("mtd8", 9, 0, Code::FlashDeviceUnsupported, &["ubi"]);
    root.refused("mtd9", 9, 0, Code::FlashDeviceUnsupported, &["erase blocks of 0"]);
    root.refused("mtd10", 9, 0, Code::FlashDeviceMissing, &["mtd10"]);
    let kinds: Vec<_> =
        mtd::list(&root.paths()).into_iter().map(|c| (c.index, c.kind, c.writeable)).collect();
    assert_eq!(kinds.len(), 10);
    assert_eq!(kinds[3], (3, "nor".into(), false));
}

#[test]
fn a_disk_of_a_made_up_root_is_found_through_links_inside_it() {
    let root = Root::new();
    root.put("dev/sdx", vec![0; 1 << 16]);
    fs::create_dir_all(root.at("dev/disk/by-id")).unwrap();
    symlink("/dev/sdx", root.at("dev/disk/by-id/usb")).unwrap();
    let written = root.write("disk/by-id/usb", &[7; 700], 600).unwrap();
    assert_eq!((written.kind, written.device), (StorageKind::Region, root.at("dev/sdx")));
    let bytes = fs::read(root.at("dev/sdx")).unwrap();
    assert!(bytes[600..1300].iter().all(|b| *b == 7) && bytes.iter().filter(|b| **b == 7).count() == 700);
    assert_eq!(bytes.len(), 1 << 16);
    assert!(!Path::new("/dev/sdx").exists());
}
