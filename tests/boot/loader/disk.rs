//! Regions of real block devices.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use copal::bootloader::{Coming, StorageKind, Write, Written, prepare, region};
use copal::config::paths::Paths;
use copal::disk::partition::{Partition, Table, TableKind};
use copal::error::{Code, Effect, Error};
use copal::sys::block::major_minor;

use crate::kit::disk::{Loop, MIB, ext4, mount, run};
use crate::kit::needs::{can_run, has, needs};

pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(1..0xff)).collect()
}

/// A disk full of noise with a table that `sgdisk` makes: FAT, a loader's partition, ext4.
struct Disk {
    disk: Loop,
    dir: tempfile::TempDir,
}

impl Disk {
    fn new(options: &[&str], table: &[&str]) -> Disk {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = dir.path().join("disk");
        fs::write(&file, noise(64 << 20, 1)).unwrap();
        let disk = Loop::over(&file, options);
        // Fails on noise, and clears it all the same.
        drop(run("sgdisk", &["-Z", disk.name()]));
        run("sgdisk", &[table, &[disk.name()]].concat()).unwrap();
        run("partx", &["-u", disk.name()]).unwrap();
        Disk { disk, dir }
    }

    fn gpt() -> Disk {
        let table = ["-n", "1:2048:18431", "-n", "2:18432:20479", "-n", "3:20480:65535", "-c", "2:loader"];
        let disk = Disk::new(&["-P"], &table);
        run("mkfs.vfat", &[&disk.part(1)]).unwrap();
        ext4(Path::new(&disk.part(3)));
        disk
    }

    fn part(&self, number: u32) -> String {
        format!("{}p{number}", self.disk.name())
    }

    fn image(&self, len: usize, seed: u64) -> PathBuf {
        let path = self.dir.path().join(format!("image{len}-{seed}"));
        fs::write(&path, noise(len, seed)).unwrap();
        path
    }

    fn write(&self, offset: u64, len: usize, seed: u64) -> Result<Written, Error> {
        let image = self.image(len, seed);
        prepare(&Write { device: self.disk.name().into(), image, offset }, &Paths::default(), None)?.run()
    }

    /// All of it, by way of the file behind it.
    fn content(&self) -> Vec<u8> {
        run("sync", &[]).unwrap();
        fs::read(&self.disk.file).unwrap()
    }

    #[track_caller]
    fn refused(&self, offset: u64, len: usize, code: Code, word: &str) {
        let before = self.content();
        let e = self.write(offset, len, 9).unwrap_err();
        assert_eq!((e.code(), e.effect()), (code, Effect::Refused), "{e}");
        assert!(e.message().contains(word) && e.message().contains(self.disk.name()), "{word:?}: {e}");
        assert!(before == self.content(), "something was written");
    }

    #[track_caller]
    fn written(&self, offset: u64, len: usize, seed: u64) -> Written {
        let mut want = self.content();
        let at = usize::try_from(offset).unwrap();
        want[at..at + len].copy_from_slice(&noise(len, seed));
        let written = self.write(offset, len, seed).unwrap();
        assert!(self.content() == want, "not exactly the image was written");
        assert_eq!((written.kind, written.offset, written.length), (StorageKind::Region, offset, len as u64));
        written
    }
}

fn can(test: &str) -> bool {
    can_run(test) && ["sgdisk", "mkfs.vfat", "mke2fs"].iter().all(|tool| has(test, tool))
}

#[test]
fn a_region_of_a_disk_in_use_is_written_and_nothing_else() {
    if !can("a_region_of_a_disk_in_use_is_written_and_nothing_else") {
        return;
    }
    let disk = Disk::gpt();
    let _in_use = mount(Path::new(&disk.part(3)), &["-o", "ro,noload"]);
    // Behind the entries of the table, as for i.MX8 (33 KiB); an odd length; the gap, whole.
    let first = disk.written(33 * 1024, 100_001, 2);
    assert!(first.changed && first.blocks_erased == 0 && first.bytes_written >= 100_001);
    let again = disk.written(33 * 1024, 100_001, 2);
    assert!(!again.changed && again.bytes_written == 0);
    assert_eq!((again.sha256.len(), &again.sha256), (64, &first.sha256));
    disk.written(17408, usize::try_from(MIB).unwrap() - 17408, 3);
    disk.written(0, 442, 4);
    // A partition for the loader, by the disk and by itself.
    disk.written(18432 * 512 + 7, 1000, 5);
    let image = disk.image(700_000, 6);
    let write = Write { device: disk.part(2)[5..].into(), image: image.clone(), offset: 512 };
    assert!(prepare(&write, &Paths::default(), None).unwrap().run().unwrap().changed);
    let at = 18433 * 512;
    assert_eq!(disk.content()[at..at + 700_000], fs::read(&image).unwrap());
}

#[test]
fn table_file_systems_and_what_is_past_the_end_are_refused() {
    if !can("table_file_systems_and_what_is_past_the_end_are_refused") {
        return;
    }
    let disk = Disk::gpt();
    let size = 64 * MIB;
    disk.refused(440, 10, Code::SpanOverTable, "partition table");
    disk.refused(0, 447, Code::SpanOverTable, "partition table");
    disk.refused(1023, 1, Code::SpanOverTable, "512 to 1024");
    disk.refused(1024, 50_000, Code::SpanOverTable, "partition table");
    disk.refused(17407, 1, Code::SpanOverTable, "1024 to 17408");
    disk.refused(size - 512, 1, Code::SpanOverTable, "partition table");
    disk.refused(33 * 1024, usize::try_from(MIB).unwrap(), Code::SpanOverFileSystem, "partition 1");
    disk.refused(MIB + 70_000, 1, Code::SpanOverFileSystem, "FAT");
    disk.refused(size / 2 - 1, 1, Code::SpanOverFileSystem, "ext");
    disk.refused(size - 1, 2, Code::SpanOutsideDevice, "67108864");
    disk.refused(u64::MAX - 5, 10, Code::SpanOutsideDevice, "67108864");
    // The partition without a file system, as long as somebody has it for himself.
    let claim = OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(disk.part(2)).unwrap();
    disk.refused(18432 * 512, 100, Code::SpanOverFileSystem, "in use");
    drop(claim);
    disk.written(18432 * 512, 100, 3);
    // A boot sector with what may pass for a partition table where its code would be.
    let boot = OpenOptions::new().write(true).open(disk.part(1)).unwrap();
    boot.write_all_at(&[0x80, 1, 1, 0, 0x83, 1, 1, 0, 9, 0, 0, 0, 9, 0, 0, 0], 446).unwrap();
    boot.sync_all().unwrap();
    // A file system without a partition table around it.
    let write = Write { device: disk.part(1), image: disk.image(5, 1), offset: 100_000 };
    let e = prepare(&write, &Paths::default(), None).err().unwrap();
    assert!(e.code() == Code::SpanOverFileSystem && e.message().contains("FAT"), "{e}");
    // Somebody has the device for himself that is not divided.
    let bare = Loop::new(MIB);
    let write = Write { device: bare.name().into(), ..write };
    let claim = OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(&bare.node).unwrap();
    let e = prepare(&write, &Paths::default(), None).err().unwrap();
    assert!(e.code() == Code::SpanOverFileSystem && e.message().contains("in use"), "{e}");
    drop(claim);
    prepare(&write, &Paths::default(), None).unwrap();
}

#[test]
fn sectors_of_4096_bytes_keep_what_is_around_the_image() {
    if !can("sectors_of_4096_bytes_keep_what_is_around_the_image") {
        return;
    }
    let disk = Disk::new(&["-P", "-b", "4096"], &["-n", "1:2048:4095"]);
    disk.written(33 * 1024, 100_001, 2);
    disk.written(33 * 1024 + 5, 3, 3);
    disk.written(446 - 442, 442, 4);
    disk.written(512, 3584, 5);
    disk.refused(4095, 2, Code::SpanOverTable, "4096 to 8192");
    disk.refused(1024, 20_000, Code::SpanOverTable, "partition table");
}

#[test]
fn a_table_that_cannot_be_understood_is_not_written_around() {
    if !can("a_table_that_cannot_be_understood_is_not_written_around") {
        return;
    }
    let disk = Disk::gpt();
    let file = OpenOptions::new().write(true).open(&disk.disk.node).unwrap();
    // Of the backup nobody minds, of the primary everybody does.
    file.write_all_at(b"x", 64 * MIB - 512).unwrap();
    file.sync_all().unwrap();
    disk.written(33 * 1024, 1000, 2);
    file.write_all_at(b"x", 512).unwrap();
    file.sync_all().unwrap();
    disk.refused(33 * 1024, 1000, Code::PartitionTableInvalid, "no primary GPT header");
}

#[test]
fn the_disk_that_will_be_flashed_is_judged_by_the_table_it_will_have() {
    if !can("the_disk_that_will_be_flashed_is_judged_by_the_table_it_will_have") {
        return;
    }
    let disk = Disk::gpt();
    let meta = fs::metadata(&disk.disk.node).unwrap();
    let dev = major_minor(std::os::unix::fs::MetadataExt::rdev(&meta));
    let partition =
        |file_system| Partition { index: 4, start: 8 * MIB, size: MIB, name: None, label: None, file_system };
    let table = |file_system| Table {
        kind: TableKind::Mbr,
        sector_size: 512,
        partitions: vec![partition(file_system)],
        backup: None,
        areas: vec![446..512, 4096..4608],
    };
    let kernel_name = disk.disk.name().trim_start_matches("/dev/");
    let check = |offset, table: Option<&Table>| {
        let write = Write { device: disk.disk.name().into(), image: disk.image(512, 1), offset };
        prepare(&write, &Paths::default(), Some(&Coming { dev, kernel_name: kernel_name.as_ref(), table }))
            .map(drop)
            .map_err(|e| e.code())
    };
    let (full, bare) = (table(Some("ext")), table(None));
    assert_eq!(check(MIB, Some(&full)), Ok(()), "the present FAT goes");
    assert_eq!(check(1024, Some(&full)), Ok(()), "the present entries go");
    assert_eq!(check(4000, Some(&full)), Err(Code::SpanOverTable));
    assert_eq!(check(8 * MIB, Some(&full)), Err(Code::SpanOverFileSystem));
    assert_eq!(check(8 * MIB, Some(&bare)), Ok(()));
    assert_eq!(check(0, None), Ok(()));
    assert_eq!(check(64 * MIB - 1, None), Err(Code::SpanOutsideDevice));
    // Of another disk it says nothing.
    let other = Coming { dev: (7, 9999), kernel_name: "other".as_ref(), table: None };
    let write = Write { device: disk.disk.name().into(), image: disk.image(512, 1), offset: MIB };
    assert_eq!(
        prepare(&write, &Paths::default(), Some(&other)).err().unwrap().code(),
        Code::SpanOverFileSystem
    );
    // The image's partitions count, although this disk does not have them yet.
    let partition = |number: u32, offset, table: Option<&Table>| {
        let device = format!("{kernel_name}p{number}");
        let write = Write { device, image: disk.image(512, 1), offset };
        prepare(&write, &Paths::default(), Some(&Coming { dev, kernel_name: kernel_name.as_ref(), table }))
            .map(|p| (p.kind(), p.compare().is_err()))
            .map_err(|e| e.code())
    };
    assert_eq!(
        partition(4, MIB - 512, Some(&bare)),
        Ok((StorageKind::Region, true)),
        "and cannot be read yet"
    );
    assert_eq!(partition(4, MIB - 511, Some(&bare)), Err(Code::SpanOutsideDevice));
    assert_eq!(partition(4, 0, Some(&full)), Err(Code::SpanOverFileSystem));
    assert_eq!(partition(3, 0, Some(&bare)), Err(Code::FlashDeviceMissing));
    assert_eq!(partition(4, 0, None), Err(Code::FlashDeviceMissing));
    // What overlaps without a file system is worth a warning each.
    let name = Path::new("/dev/x");
    assert_eq!(region::check(name, &(0..10 * MIB), 64 * MIB, None).unwrap(), Vec::<String>::new());
    let warnings = region::check(name, &(8 * MIB..9 * MIB), 64 * MIB, Some(&bare)).unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("partition 4"), "{warnings:?}");
    let warnings = region::check(name, &(0..442), 64 * MIB, Some(&bare)).unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("PARTUUID"), "{warnings:?}");
}

#[test]
fn a_write_protected_disk_and_what_is_no_device_are_refused() {
    if !can("a_write_protected_disk_and_what_is_no_device_are_refused") {
        return;
    }
    let disk = Disk::gpt();
    let frozen = Loop::over(&disk.disk.file, &["-r"]);
    let image = disk.image(100, 1);
    let error = |device: &str, image: &Path| {
        let write = Write { device: device.into(), image: image.into(), offset: 33 * 1024 };
        prepare(&write, &Paths::default(), None).err().unwrap()
    };
    assert_eq!(error(frozen.name(), &image).code(), Code::TargetReadOnly);
    for device in ["no-such-disk", "null", "/etc/hostname", "disk", "mtd:none", "mtd77", "mtdblock77", ".."] {
        assert_eq!(error(device, &image).code(), Code::FlashDeviceMissing, "{device}");
    }
    let empty = disk.dir.path().join("empty");
    File::create(&empty).unwrap();
    let large = disk.dir.path().join("large");
    File::create(&large).unwrap().set_len(65 << 20).unwrap();
    for (image, code) in [
        (Path::new("/no/such/file"), Code::ImageMissing),
        (disk.dir.path(), Code::ImageNotRegular),
        (Path::new("/dev/null"), Code::ImageNotRegular),
        (&empty, Code::ImageEmpty),
        (&large, Code::BootloaderTooLarge),
    ] {
        let e = error(disk.disk.name(), image);
        assert_eq!(e.code(), code);
        assert!(e.message().contains(image.to_str().unwrap()), "{e}");
    }
}

#[test]
fn the_program_takes_a_device_by_its_name_and_by_a_path() {
    needs!(can_run);
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("disk"), noise(4 << 20, 1)).unwrap();
    fs::write(at("image"), noise(9000, 2)).unwrap();
    let disk = Loop::over(&at("disk"), &[]);
    let real = fs::canonicalize(disk.name()).unwrap();
    // A name that is not UTF-8, as others may make it.
    let link = dir.path().join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"a\xffdisk"));
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let relative = Path::new(".").join(link.file_name().unwrap());
    for target in [Path::new(real.file_name().unwrap()), &real, &link, &relative] {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_copal"))
            .args(["bootloader", "write", "--plan", "--json"])
            .arg(at("image"))
            .arg(target)
            .args(["--block-size", "1K", "--seek", "33"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "{}: {text}", target.display());
        let line: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(line["bootloader"]["device"], real.to_str().unwrap(), "{}", target.display());
    }
}
