//! Partition tables and labels, made with sfdisk, sgdisk, mkfs.vfat, mtools and mke2fs.
#![allow(clippy::cast_possible_truncation)]

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::support::{Bench, MIB, look, noise, put, refused, run, text};
use crate::kit::needs::{needs, tools};
use copal::disk::partition::TableKind;
use copal::disk::partition::label::label;
use copal::disk::select::ImageSize;
use copal::error::Code;

fn label_of(path: &Path) -> Option<String> {
    let file = fs::File::open(path).unwrap();
    label(&mut |offset, buf| file.read_exact_at(buf, offset)).unwrap()
}

/// The label inside a partition image, and then inside a compressed disk that has it as its boot partition.
fn both(bench: &Bench, fat: &Path) -> Option<String> {
    let found = label_of(fat);
    let size = fs::metadata(fat).unwrap().len();
    let disk = bench.sparse("both.img", size + 2 * MIB);
    run("sfdisk", &["-q", text(&disk)], Some(&format!("label: gpt\n2048,{},U\n", size / 512)));
    put(&disk, MIB, &fs::read(fat).unwrap());
    let checks = copal::image::Checks { force_raw: true, ..Default::default() };
    for file in [&disk, &bench.pack(&disk, "both.zst", "zstd -1")] {
        let table = super::support::look_with(file, &checks).unwrap().table.unwrap();
        assert_eq!(table.partitions[0].label, found, "{}", file.display());
    }
    found
}

fn fat_kinds(bench: &Bench) -> Vec<PathBuf> {
    vec![
        bench.fat("fat12", 2 * MIB, &["-F", "12", "-n", "resin-boot"]),
        bench.fat("fat16", 20 * MIB, &["-F", "16", "-n", "resin-boot"]),
        bench.fat("fat32", 40 * MIB, &["-F", "32", "-n", "resin-boot"]),
        bench.fat("fat32s", 5 * MIB, &["-F", "32", "-s", "1", "-n", "resin-boot"]),
        bench.fat("fat4k", 40 * MIB, &["-S", "4096", "-n", "resin-boot"]),
    ]
}

#[test]
fn labels_of_fat() {
    needs!(tools);
    let bench = Bench::new();
    for path in fat_kinds(&bench) {
        assert_eq!(both(&bench, &path).as_deref(), Some("resin-boot"), "{}", path.display());
    }
    assert_eq!(label_of(&bench.fat("none", 8 * MIB, &[])), None);
    assert_eq!(label_of(&bench.fat("name", 8 * MIB, &["-n", "RESIN-BOOT"])).as_deref(), Some("RESIN-BOOT"));
}

/// Offset of the boot sector's label and of the root folder's entry.
fn places(path: &Path) -> (u64, u64) {
    let bytes = fs::read(path).unwrap();
    let found: Vec<u64> =
        (0..bytes.len() as u64 - 11).filter(|at| bytes[*at as usize..].starts_with(b"resin-boot ")).collect();
    // Boot sector, on FAT32 its copy, root folder.
    (found[0], *found.last().unwrap())
}

#[test]
fn the_root_folder_comes_before_the_boot_sector() {
    needs!(tools);
    let bench = Bench::new();
    for path in fat_kinds(&bench) {
        let (boot, root) = places(&path);
        put(&path, boot, b"elsewhere  ");
        assert_eq!(both(&bench, &path).as_deref(), Some("resin-boot"), "only in the root folder");
        put(&path, boot, b"NO NAME    ");
        assert_eq!(label_of(&path).as_deref(), Some("resin-boot"));
        put(&path, root, b"elsewhere  ");
        put(&path, boot, b"resin-boot ");
        assert_eq!(both(&bench, &path).as_deref(), Some("elsewhere"), "both, and they differ");
        put(&path, root, &[0xe5]);
        assert_eq!(both(&bench, &path).as_deref(), Some("resin-boot"), "deleted in the root folder");
        put(&path, root, &[0; 32]);
        assert_eq!(label_of(&path).as_deref(), Some("resin-boot"), "only in the boot sector");
        put(&path, boot - 5, &[0x28]);
        assert_eq!(label_of(&path), None, "the field is not valid without its signature");
    }
}

#[test]
fn the_entry_is_found_after_others() {
    needs!(tools);
    let bench = Bench::new();
    for (path, others) in fat_kinds(&bench).into_iter().zip([20, 100, 300, 0, 100]) {
        // mtools takes so small a FAT32 for a FAT16 and finds no room in it.
        if others == 0 {
            continue;
        }
        let (boot, root) = places(&path);
        put(&path, boot, b"elsewhere  ");
        // The volume entry makes room, and comes back as the last, behind long names and deleted ones.
        put(&path, root, &[0xe5]);
        let files: Vec<_> =
            (0..others).map(|i| bench.write(&format!("a long file name {i}.text"), b"")).collect();
        let names: Vec<&str> = files.iter().map(|f| text(f)).collect();
        run("mcopy", &[&["-i", text(&path)], &names[..], &["::"]].concat(), None);
        run("mdel", &["-i", text(&path), "::/a long file name 1.text"], None);
        put(&path, root, &[0xe5]);
        run("mlabel", &["-i", text(&path), "::resinlast"], None);
        put(&path, boot, b"elsewhere  ");
        assert_eq!(both(&bench, &path).as_deref(), Some("RESINLAST"), "{}", path.display());
    }
}

#[test]
fn labels_of_ext_and_of_nothing() {
    needs!(tools);
    let bench = Bench::new();
    for kind in ["ext2", "ext3", "ext4"] {
        let path = bench.sparse("ext", 8 * MIB);
        run("mke2fs", &["-q", "-t", kind, "-L", "sixteen-letters!", text(&path)], None);
        assert_eq!(both(&bench, &path).as_deref(), Some("sixteen-letters!"));
        run("mke2fs", &["-q", "-F", "-t", kind, text(&path)], None);
        assert_eq!(label_of(&path), None);
        // A FAT made over it leaves the old superblock's place alone.
        run("mkfs.vfat", &["-n", "resin-boot", text(&path)], None);
        assert_eq!(label_of(&path).as_deref(), Some("resin-boot"));
    }
    for size in [0, 1, 511, 512, 1100, 5000] {
        assert_eq!(label_of(&bench.write("noise", &noise(size, 1))), None);
    }
}

#[test]
fn labels_of_damaged_file_systems_end() {
    needs!(tools);
    let bench = Bench::new();
    let mut rng = fastrand::Rng::with_seed(3);
    let mut kinds = fat_kinds(&bench);
    kinds.push(bench.sparse("ext", 8 * MIB));
    run("mke2fs", &["-q", "-L", "x", text(&kinds[5])], None);
    for path in kinds {
        let good = fs::read(&path).unwrap();
        for _ in 0..150 {
            let mut bad = good[..good.len().min(1 << 20)].to_vec();
            for _ in 0..rng.usize(1..6) {
                let reach = if rng.bool() { 90 } else { 40_000 };
                let (at, any) = (rng.usize(..reach), rng.u8(..));
                bad[at] = *rng.choice(&[0, 1, 0x80, 0xff, any]).unwrap();
            }
            let mut reads = 0;
            let found = label(&mut |offset, buf| {
                reads += 1;
                assert!(reads < 70_000 && buf.len() <= 4096);
                let at = usize::try_from(offset).map_err(io::Error::other)?;
                let bytes = bad.get(at..at + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
                buf.copy_from_slice(bytes);
                Ok(())
            });
            assert!(found.unwrap().is_none_or(|l| l.chars().count() <= 16));
        }
    }
}

/// An MBR disk with logical partitions as balenaOS has it: boot, rootA, rootB, extended with state and data.
fn mbr_disk(bench: &Bench) -> PathBuf {
    let path = bench.sparse("mbr.img", 40 * MIB);
    let script = "label: dos\n2048,8192,c,*\n10240,8192,83\n18432,8192,83\n26624,,5\n28672,8192,83\n40960,8192,83\n65536,4096,83\n";
    run("sfdisk", &["-q", text(&path)], Some(script));
    let boot = bench.fat("part.fat", 4 * MIB, &["-n", "resin-boot"]);
    put(&path, MIB, &fs::read(boot).unwrap());
    let state = bench.sparse("part.ext", 4 * MIB);
    run("mke2fs", &["-q", "-L", "resin-state", text(&state)], None);
    put(&path, 14 * MIB, &fs::read(state).unwrap());
    path
}

#[test]
fn mbr_with_logical_partitions() {
    needs!(tools);
    let bench = Bench::new();
    let path = mbr_disk(&bench);
    for file in [&path, &bench.pack(&path, "mbr.zst", "zstd")] {
        let found = look(file).unwrap();
        let table = found.table.unwrap();
        assert_eq!((table.kind, table.sector_size, table.backup), (TableKind::Mbr, 512, None));
        let list: Vec<_> = table
            .partitions
            .iter()
            .map(|p| (p.index, p.start / 512, p.size / 512, p.label.as_deref()))
            .collect();
        assert_eq!(
            list,
            [
                (1, 2048, 8192, Some("resin-boot")),
                (2, 10240, 8192, None),
                (3, 18432, 8192, None),
                (5, 28672, 8192, Some("resin-state")),
                (6, 40960, 8192, None),
                (7, 65536, 4096, None),
            ]
        );
    }
    let checks = copal::image::Checks { single_pass: true, ..Default::default() };
    let single = super::support::look_with(&bench.pack(&path, "mbr.gz", "gzip"), &checks).unwrap();
    assert!(
        matches!(single.size, ImageSize::AtLeast(s) if s <= 40 * MIB)
            || single.size == ImageSize::Exact(40 * MIB)
    );
}

/// Offsets of the second and third extended record, from the links.
fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn bad_mbrs() {
    needs!(tools);
    let bench = Bench::new();
    let good = fs::read(mbr_disk(&bench)).unwrap();
    let ebr = 26624 * 512;
    let second = ebr + le32(&good, ebr + 446 + 16 + 8) as usize * 512;
    let invalid = Code::PartitionTableInvalid;
    type Edit<'a> = (&'a str, Code, &'a str, Box<dyn Fn(&mut Vec<u8>)>);
    let cases: Vec<Edit<'_>> = vec![
        ("no signature", Code::NoPartitionTable, "55 aa", Box::new(|b| b[510] = 0)),
        ("empty", Code::NoPartitionTable, "empty", Box::new(|b| b[446..510].fill(0))),
        ("a file system", Code::NoPartitionTable, "boot sector", Box::new(|b| b[446] = 0x41)),
        ("truncated", Code::ImageDamaged, "truncated", Box::new(|b| b.truncate(35 << 20))),
        ("cut to the table", Code::ImageDamaged, "truncated", Box::new(|b| b.truncate(512))),
        ("less than that", Code::NoPartitionTable, "smaller than a sector", Box::new(|b| b.truncate(300))),
        ("overlap", invalid, "partitions 1 and 2 overlap", Box::new(|b| b[446 + 16 + 9] = 0x20)),
        ("covers the table", invalid, "partition 1", Box::new(|b| b[446 + 8..446 + 12].fill(0))),
        ("two extended", invalid, "two extended", Box::new(|b| b[446 + 32 + 4] = 5)),
        ("into the extended", invalid, "partition 3", Box::new(|b| b[446 + 32 + 13] = 0x30)),
        ("loop", invalid, "does not end", Box::new(move |b| b[second + 446 + 16 + 8..][..4].fill(0))),
        ("unsigned record", invalid, "55 aa", Box::new(move |b| b[second + 510] = 0)),
        ("leaves", invalid, "leaves", Box::new(move |b| b[second + 446 + 16 + 11] = 0x7f)),
        ("logical leaves", invalid, "leaves", Box::new(move |b| b[ebr + 446 + 14] = 0x01)),
    ];
    for (name, code, words, edit) in cases {
        let mut bad = good.clone();
        edit(&mut bad);
        let path = bench.write("bad.img", &bad);
        for file in [&path, &bench.pack(&path, "bad.zst", "zstd -1")] {
            let result = look(file);
            let shown = result.as_ref().err().map(ToString::to_string);
            assert!(shown.as_ref().is_some_and(|e| e.contains(words)), "{name}: {shown:?}");
            refused(result, code, file, &[]);
        }
    }
}

#[test]
fn bad_gpts() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("disk.img");
    let good = fs::read(&path).unwrap();
    let (array, header) = (good.len() - 33 * 512, good.len() - 512);
    let invalid = Code::PartitionTableInvalid;
    type Edit<'a> = (&'a str, Code, &'a str, Box<dyn Fn(&mut Vec<u8>)>);
    let cases: Vec<Edit<'_>> = vec![
        ("no header", invalid, "no primary GPT header", Box::new(|b| b[512] = 0)),
        ("header", invalid, "checksum of the primary GPT header", Box::new(|b| b[512 + 60] ^= 1)),
        ("entries", invalid, "primary GPT's entries", Box::new(|b| b[1024 + 60] ^= 1)),
        ("header length", invalid, "claims", Box::new(|b| b[512 + 13] = 0xff)),
        ("backup header", invalid, "no backup GPT header", Box::new(move |b| b[header] = 0)),
        ("backup checksum", invalid, "backup GPT header does not", Box::new(move |b| b[header + 57] ^= 1)),
        ("backup entries", invalid, "backup GPT's entries", Box::new(move |b| b[array + 60] ^= 1)),
        ("one sector short", Code::ImageDamaged, "truncated", Box::new(move |b| b.truncate(header))),
        ("half", Code::ImageDamaged, "truncated", Box::new(move |b| b.truncate(header / 2))),
        ("entries cut", Code::ImageDamaged, "truncated", Box::new(move |b| b.truncate(3000))),
        ("no protective record", Code::NoPartitionTable, "empty", Box::new(|b| b[446..510].fill(0))),
        // With checksums made right again.
        ("overlap", invalid, "overlap", Box::new(|b| reseal(b, |e, _| e[128 + 33] = 0x20))),
        ("leaves", invalid, "leaves the usable range", Box::new(|b| reseal(b, |e, _| e[256 + 44] = 1))),
        ("backwards", invalid, "leaves the usable range", Box::new(|b| reseal(b, |e, _| e[41] = 0))),
        ("huge", invalid, "claims", Box::new(|b| reseal(b, |_, h| h[82] = 0xff))),
        ("entry length", invalid, "claims", Box::new(|b| reseal(b, |_, h| h[84] = 129))),
        ("moved", invalid, "is sector 2", Box::new(|b| reseal(b, |_, h| h[24] = 2))),
        ("elsewhere", invalid, "cannot exist", Box::new(|b| reseal(b, |_, h| h[32..40].fill(0x7f)))),
        (
            "range",
            invalid,
            "between the two GPTs",
            Box::new(|b| reseal(b, |_, h| h[40..42].copy_from_slice(&[33, 0]))),
        ),
        ("disk", invalid, "does not match the primary", Box::new(|b| reseal(b, |_, h| h[56] ^= 1))),
    ];
    for (name, code, words, edit) in cases {
        let mut bad = good.clone();
        edit(&mut bad);
        let path = bench.write("bad.img", &bad);
        for file in [&path, &bench.pack(&path, "bad.zst", "zstd -1")] {
            let result = look(file);
            let shown = result.as_ref().err().map(ToString::to_string);
            assert!(shown.as_ref().is_some_and(|e| e.contains(words)), "{name}: {shown:?}");
            refused(result, code, file, &[]);
        }
    }
}

/// Edits the primary's entries and header and makes their checksums right.
fn reseal(image: &mut [u8], edit: impl Fn(&mut [u8], &mut [u8])) {
    let (head, entries) = image.split_at_mut(1024);
    let header = &mut head[512..];
    edit(&mut entries[..16384], header);
    let crc = crc32fast::hash(&entries[..16384]);
    header[88..92].copy_from_slice(&crc.to_le_bytes());
    header[16..20].fill(0);
    let crc = crc32fast::hash(&header[..92]);
    header[16..20].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn gpt_made_by_sgdisk_hybrid_and_with_few_entries() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.sparse("sg.img", 24 * MIB);
    run("sgdisk", &["-n", "3:2048:+4M", "-c", "3:the boot", "-n", "1:12288:+4M", text(&path)], None);
    let boot = bench.fat("part.fat", 4 * MIB, &["-n", "resin-boot"]);
    put(&path, MIB, &fs::read(boot).unwrap());
    let check = |path: &Path| {
        for file in [path, &bench.pack(path, "sg.xz", "xz -0")] {
            let table = look(file).unwrap().table.unwrap();
            assert_eq!(table.kind, TableKind::Gpt);
            let list: Vec<_> = table.partitions.iter().map(|p| (p.index, p.name.as_deref())).collect();
            assert_eq!(list, [(1, None), (3, Some("the boot"))]);
            assert_eq!(table.partitions[1].label.as_deref(), Some("resin-boot"));
            let backup = table.backup.unwrap();
            assert_eq!(backup.end, 24 * MIB);
        }
    };
    check(&path);
    run("sgdisk", &["-h", "3", text(&path)], None);
    check(&path);
    run("sgdisk", &["-S", "8", text(&path)], None);
    check(&path);
    // More behind the backup is part of the image.
    fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(26 * MIB).unwrap();
    check(&path);
}

#[test]
fn gpt_of_4096_byte_sectors() {
    needs!(tools);
    let bench = Bench::new();
    // util-linux before 2.39 makes such a table only on a device with such sectors; the gpt crate makes it in a file.
    let path = bench.sparse("4k.img", 48 * MIB);
    let mut file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    gpt::mbr::ProtectiveMBR::with_lb_size(u32::try_from(48 * MIB / 4096 - 1).unwrap())
        .overwrite_lba0(&mut file)
        .unwrap();
    let config = gpt::GptConfig::new().writable(true).logical_block_size(gpt::disk::LogicalBlockSize::Lb4096);
    let mut disk = config.create_from_device(file, None).unwrap();
    for (name, index, start, sectors) in [("boot", 1, 256, 8192), ("root", 2, 8448, 2048)] {
        let kind = gpt::partition_types::LINUX_FS;
        disk.add_partition_at(name, index, start, sectors, kind, 0).unwrap();
    }
    disk.write().unwrap();
    let boot = bench.fat("part.fat", 32 * MIB, &["-S", "4096", "-n", "resin-boot"]);
    put(&path, MIB, &fs::read(boot).unwrap());
    for file in [&path, &bench.pack(&path, "4k.gz", "gzip -1")] {
        let table = look(file).unwrap().table.unwrap();
        assert_eq!((table.kind, table.sector_size), (TableKind::Gpt, 4096));
        assert_eq!((table.partitions[0].start, table.partitions[0].size), (MIB, 32 * MIB));
        assert_eq!(table.backup, Some(48 * MIB - 5 * 4096..48 * MIB));
    }
}

#[test]
fn two_boot_partitions_are_one_too_many() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("disk.img");
    let boot = fs::read(bench.at("part.fat")).unwrap();
    put(&path, 5 * MIB, &boot);
    refused(look(&path), Code::NoBootPartition, &path, &["more than one (2)", "2 `resin-boot`"]);
}

#[test]
fn headers_in_front_of_what_leads_to_them_cost_another_pass() {
    needs!(tools);
    let bench = Bench::new();
    // A root folder that starts in cluster 4000 and goes on in cluster 2, two mebibytes before.
    let fat = bench.fat("far.fat", 5 * MIB, &["-F", "32", "-s", "1", "-n", "resin-boot"]);
    let (boot, root) = places(&fat);
    put(&fat, boot, b"elsewhere  ");
    let bytes = fs::read(&fat).unwrap();
    let table = u64::from(u16::from_le_bytes([bytes[14], bytes[15]])) * 512;
    put(&fat, 44, &4000u32.to_le_bytes());
    put(&fat, table + 4 * 4000, &2u32.to_le_bytes());
    put(&fat, root + 3998 * 512, &[0xe5; 512]);
    assert_eq!(both(&bench, &fat).as_deref(), Some("resin-boot"));
    // A folder without end.
    put(&fat, table + 4 * 4000, &4000u32.to_le_bytes());
    assert_eq!(both(&bench, &fat).as_deref(), Some("elsewhere"));
}

#[test]
fn numbers_need_not_follow_the_order_of_places() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.disk("disk.img");
    run("sgdisk", &["-r", "1:2", text(&path)], None);
    for file in [&path, &bench.pack(&path, "order.gz", "gzip")] {
        let table = look(file).unwrap().table.unwrap();
        let list: Vec<_> = table.partitions.iter().map(|p| (p.index, p.label.as_deref())).collect();
        assert_eq!(list, [(1, Some("resin-rootA")), (2, Some("resin-boot")), (3, None)]);
    }
}

/// The backup GPT is kept in memory while the rest is written: an array far from its header must not cost any amount.
#[test]
fn backup_entries_far_from_their_header_are_refused() {
    needs!(tools);
    let bench = Bench::new();
    let disk = bench.sparse("far.img", 40 * MIB);
    run("sgdisk", &["-o", "-n", "1:2048:+8M", text(&disk)], None);
    let mut bytes = fs::read(&disk).unwrap();
    let last = bytes.len() - 512;
    let array = (20 * MIB) as usize;
    bytes.copy_within(last - 32 * 512..last, array);
    // UEFI specification, "GPT Header": last usable LBA at 48, LBA of the entries at 72, CRC at 16 over 92 bytes.
    for (header, entries) in [(512, 2u64), (last, array as u64 / 512)] {
        bytes[header + 48..header + 56].copy_from_slice(&(array as u64 / 512 - 1).to_le_bytes());
        bytes[header + 72..header + 80].copy_from_slice(&entries.to_le_bytes());
        bytes[header + 16..header + 20].fill(0);
        let crc = crc32fast::hash(&bytes[header..header + 92]);
        bytes[header + 16..header + 20].copy_from_slice(&crc.to_le_bytes());
    }
    fs::write(&disk, &bytes).unwrap();
    let checks = copal::image::Checks::default();
    let error = super::support::look_with(&disk, &checks).unwrap_err();
    assert_eq!(error.code(), Code::PartitionTableInvalid);
    assert!(error.message().contains("far from their header"), "{error}");
}

/// The table of a disk file, as a disk in use is read.
fn table_of(path: &Path) -> copal::disk::partition::Table {
    let file = fs::File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    copal::disk::partition::of_disk(&mut |offset, buf| file.read_exact_at(buf, offset), size).unwrap()
}

#[test]
fn areas_of_a_gpt_are_those_of_its_own_entry_array() {
    needs!(tools);
    let bench = Bench::new();
    let disk = bench.disk("gpt");
    let size = fs::metadata(&disk).unwrap().len();
    let table = table_of(&disk);
    assert_eq!(table.areas, [446..512, 512..1024, 1024..17408, size - 33 * 512..size]);
    let found: Vec<_> = table.partitions.iter().map(|p| p.file_system).collect();
    assert_eq!(found, [Some("FAT"), Some("ext"), None]);
    // A short array, moved away from where a first loader begins.
    let moved = bench.sparse("moved", 8 * MIB);
    run("sgdisk", &["-a", "8", "-j", "1000", "-n", "1:2048:4095", text(&moved)], None);
    assert_eq!(table_of(&moved).areas[1..3], [512..1024, 512_000..528_384]);
}

#[test]
fn a_damaged_backup_matters_for_an_image_and_not_for_a_disk() {
    needs!(tools);
    let bench = Bench::new();
    let disk = bench.disk("gpt");
    let size = fs::metadata(&disk).unwrap().len();
    put(&disk, size - 512, b"no header");
    assert_eq!(table_of(&disk).areas[3], size - 33 * 512..size);
    assert_eq!(look(&disk).unwrap_err().code(), Code::PartitionTableInvalid);
}

#[test]
fn areas_of_an_mbr_leave_the_boot_code_out_and_have_the_extended_records() {
    needs!(tools);
    let bench = Bench::new();
    let disk = bench.sparse("mbr", 40 * MIB);
    run(
        "sfdisk",
        &["-q", text(&disk)],
        Some("label: dos\n2048,8192,c\n10240,,5\n12288,8192,83\n28672,8192,83\n"),
    );
    let areas = table_of(&disk).areas;
    assert_eq!(areas[..2], [446..512, 10240 * 512..10241 * 512]);
    assert_eq!(areas.len(), 3, "{areas:?}");
}
