//! The label of a FAT file system that mkfs.fat has made, changed as fsck.fat and blkid accept it.

use std::{fs, io};

use proptest::prelude::*;

use super::support::{Bench, MIB, run, text};
use crate::kit::needs::{needs, test_name, tools};

/// Compiled a second time: inside the crate nothing calls it without a block device.
#[allow(dead_code)]
#[path = "../../src/disk/partition/fat.rs"]
mod source;

/// As the module's parent has it.
type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a;

const OLD: &[u8; 11] = b"resin-boot ";

type Edits = Vec<(u64, Vec<u8>)>;

fn edits(image: &[u8], label: &str) -> io::Result<Option<Edits>> {
    let mut read_at = |offset: u64, buf: &mut [u8]| {
        let from = image.get(usize::try_from(offset).unwrap()..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    };
    source::fat_label(&mut read_at, label)
}

/// The image with the new label.
fn relabelled(image: &[u8], label: &str) -> Vec<u8> {
    let mut new = image.to_vec();
    for (offset, bytes) in edits(image, label).unwrap().unwrap() {
        let at = usize::try_from(offset).unwrap();
        new[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    new
}

/// Where the image has these eleven bytes, as far as the first clusters.
fn places(image: &[u8], name: &[u8]) -> Vec<usize> {
    image[..1 << 20].windows(11).enumerate().filter(|(_, bytes)| *bytes == name).map(|(at, _)| at).collect()
}

fn boot_field(bits: &str) -> usize {
    if bits == "32" { 71 } else { 43 }
}

/// What other tools say of an image.
fn assert_sound(bench: &Bench, image: &[u8], label: &str) {
    let path = bench.write("new.img", image);
    run("fsck.fat", &["-n", text(&path)], None);
    for (tag, expected) in [("LABEL", label), ("LABEL_FATBOOT", label), ("TYPE", "vfat")] {
        let found = run("blkid", &["-p", "-o", "value", "-s", tag, text(&path)], None);
        assert_eq!(found.trim_end_matches('\n'), expected, "{tag}");
    }
}

/// One of each kind: the bits, the sector size, and the image. It has a file with a long name, where mtools take its size for possible.
fn kinds(bench: &Bench, label: &[&str]) -> Vec<(&'static str, usize, Vec<u8>)> {
    let all =
        [("12", 512, 1), ("12", 4096, 4), ("16", 512, 4), ("16", 4096, 20), ("32", 512, 35), ("32", 4096, 4)];
    let make = |(bits, sector, mib): (&'static str, usize, u64)| {
        let size = sector.to_string();
        let kind = ["-F", bits, "-S", &size, "-s", "1"];
        let path = bench.fat("fat.img", mib * MIB, &[&kind[..], label].concat());
        let file = bench.write("file", b"its content");
        if (bits, sector) != ("32", 4096) {
            run("mcopy", &["-i", text(&path), text(&file), "::a file with a long name"], None);
        }
        (bits, sector, fs::read(path).unwrap())
    };
    all.into_iter().map(make).collect()
}

#[test]
fn every_kind_of_fat_gets_its_label_at_each_place_and_nothing_else_changes() {
    needs!(tools);
    let bench = Bench::new();
    for (bits, sector, old) in kinds(&bench, &["-n", "resin-boot"]) {
        let what = format!("FAT{bits}, sectors of {sector} bytes");
        let found = places(&old, OLD);
        let (root, boot) = found.split_last().unwrap();
        let copy = (bits == "32").then_some(6 * sector + 71);
        let expected: Vec<usize> = std::iter::once(boot_field(bits)).chain(copy).collect();
        assert_eq!((boot, old[root + 11]), (expected.as_slice(), 8), "{what}");
        for label in ["nonenc-boot", "flash-boot", "x"] {
            let mut expected = old.clone();
            for at in &found {
                expected[*at..at + 11].copy_from_slice(format!("{label:11}").as_bytes());
            }
            let new = relabelled(&old, label);
            assert!(new == expected, "{what}, {label}");
            assert_sound(&bench, &new, label);
        }
    }
}

#[test]
fn the_entry_of_the_label_is_found_behind_those_of_files() {
    needs!(tools);
    let bench = Bench::new();
    for (bits, _, image) in kinds(&bench, &[]).into_iter().filter(|(_, sector, _)| *sector == 512) {
        // Two entries of a long name, one of a short one; a cluster has 16.
        let path = bench.write("fat.img", &image);
        let file = bench.write("file", b"");
        for n in 0..30 {
            run("mcopy", &["-i", text(&path), text(&file), &format!("::a rather long name, {n}")], None);
        }
        run("mdel", &["-i", text(&path), "::a rather long name, 29"], None);
        let image = fs::read(&path).unwrap();
        assert_eq!(edits(&image, "x").unwrap(), None, "{bits}: there is none yet");
        run("fatlabel", &[text(&path), "resin-boot"], None);
        let image = fs::read(&path).unwrap();
        let root = *places(&image, OLD).last().unwrap();
        assert_eq!(image[root + 11], 8);
        let new = relabelled(&image, "nonenc-boot");
        assert_eq!(places(&new, b"nonenc-boot"), places(&image, OLD), "{bits}");
        assert_sound(&bench, &new, "nonenc-boot");
    }
}

#[test]
fn only_the_root_folder_must_have_a_label() {
    needs!(tools);
    let bench = Bench::new();
    for (bits, sector, mut image) in kinds(&bench, &["-n", "resin-boot"]) {
        let at = |image: &[u8]| -> Vec<u64> {
            edits(image, "new").unwrap().unwrap().into_iter().map(|(offset, _)| offset).collect()
        };
        let all = at(&image);
        let root = usize::try_from(*all.last().unwrap()).unwrap();
        // A deleted entry, and one of a folder.
        for (place, value) in [(root, 0xE5), (root + 11, 0x10)] {
            let former = std::mem::replace(&mut image[place], value);
            assert_eq!(edits(&image, "new").unwrap(), None, "FAT{bits}, {sector}");
            image[place] = former;
        }
        // Without the signature of the extended boot record there is no field, in either sector.
        image[boot_field(bits) - 5] = 0;
        assert_eq!(at(&image), all[1..], "FAT{bits}, {sector}");
        if bits == "32" {
            image[6 * sector + 510] = 0;
            assert_eq!(at(&image), all[2..], "a copy that is none, {sector}");
        }
    }
}

#[test]
fn what_is_no_fat_is_left_alone() {
    needs!(tools);
    let bench = Bench::new();
    for (bits, sector, mut image) in kinds(&bench, &["-n", "resin-boot"]) {
        for (at, values) in [
            (0, &[0x00, 0xFA][..]),
            (510, &[0x00]),
            (511, &[0x00]),
            (11, &[0x01]),
            (12, &[0x00, 0x01, 0x20]),
            (13, &[0, 3]),
            (16, &[0, 5]),
            (21, &[0x00, 0xF1]),
        ] {
            for value in values {
                let former = std::mem::replace(&mut image[at], *value);
                assert_eq!(edits(&image, "x").unwrap(), None, "FAT{bits}, {sector}: {value:#x} at {at}");
                image[at] = former;
            }
        }
        // NTFS and exFAT have no reserved sectors.
        image[14..16].fill(0);
        assert_eq!(edits(&image, "x").unwrap(), None);
    }
    let ext = bench.sparse("ext.img", 4 * MIB);
    run("mke2fs", &["-q", "-t", "ext4", text(&ext)], None);
    let disk = fs::read(bench.disk("disk.img")).unwrap();
    for image in [fs::read(ext).unwrap(), disk, vec![0; 4096], b"LUKS\xba\xbe".repeat(1000)] {
        assert_eq!(edits(&image, "x").unwrap(), None);
    }
    assert!(edits(&[0xEB; 511], "x").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// A damaged file system ends the search, in time and without a panic.
    #[test]
    fn damage_is_survived(
        kind in 0..3_usize,
        damage in prop::collection::vec((prop_oneof![0..96_usize, 0..8192_usize], any::<u8>()), 1..8),
    ) {
        if !tools(test_name!()) {
            return Ok(());
        }
        static IMAGES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
        let images = IMAGES.get_or_init(|| {
            let all = kinds(&Bench::new(), &["-n", "resin-boot"]);
            all.into_iter().filter(|(_, sector, _)| *sector == 512).map(|(.., image)| image[..1 << 20].to_vec()).collect()
        });
        let mut image = images[kind].clone();
        for (at, value) in damage {
            image[at] = value;
        }
        for (_, bytes) in edits(&image, "new").ok().flatten().unwrap_or_default() {
            prop_assert_eq!(bytes, b"new        ");
        }
    }
}

#[test]
fn the_room_of_a_file_system_and_the_need_of_a_folder_are_those_of_mtools() {
    needs!(tools);
    let bench = Bench::new();
    let (small, large) = (bench.write("small", b"x"), bench.write("large", &vec![1; 70_001]));
    for (bits, sector, image) in kinds(&bench, &[]).into_iter().filter(|(_, sector, _)| *sector == 512) {
        let path = bench.write("fat.img", &image);
        run(
            "mmd",
            &["-i", text(&path), "::EFI", "::EFI/BOOT", "::EFI/BOOT/a folder with a long name", "::other"],
            None,
        );
        for (file, to) in [
            (&small, "::EFI/BOOT/grub.cfg"),
            (&large, "::EFI/BOOT/bootx64.efi.secureboot"),
            (&large, "::EFI/BOOT/a folder with a long name/another long name"),
            (&large, "::other/not of EFI"),
        ] {
            run("mcopy", &["-i", text(&path), text(file), to], None);
        }
        for n in 0..40 {
            run(
                "mcopy",
                &["-i", text(&path), text(&small), &format!("::EFI/BOOT/a rather long name, {n}")],
                None,
            );
        }
        let image = fs::read(&path).unwrap();
        let mut read_at = |offset: u64, buf: &mut [u8]| {
            let from = image.get(usize::try_from(offset).unwrap()..).and_then(|rest| rest.get(..buf.len()));
            buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let (room, needed) = source::room_in_fat(&mut read_at, "EFI").unwrap().unwrap();
        // "N/M clusters" of `fsck.fat`, "N clusters" of `mdu`; a cluster is a sector.
        let said = run("fsck.fat", &["-n", text(&path)], None);
        let clusters = said.trim().rsplit_once('/').unwrap().1.split(' ').next().unwrap();
        assert_eq!(room, clusters.parse::<u64>().unwrap() * sector as u64, "FAT{bits}: {said}");
        let said = run("mdu", &["-i", text(&path), "-s", "::EFI"], None);
        let clusters: u64 = said.split_whitespace().last().unwrap().parse().unwrap();
        let least = clusters * sector as u64;
        // Short names may need no long one beside them, which is not looked at.
        assert!((least..=least + 4096).contains(&needed), "FAT{bits}: {needed}, {said}");
        assert_eq!(source::room_in_fat(&mut read_at, "none").unwrap(), None);
    }
}
