//! Partition tables that copal makes: byte by byte those of sgdisk, and read back by other programs.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use copal::disk::partition::create::{Kind, NewPartition, NewTable, gpt, random_guid};
use copal::disk::partition::{TableKind, analyse, of_disk};
use proptest::prelude::*;

use super::support::{Bench, MIB, run, text};
use crate::kit::needs::{needs, test_name, tools};
use crate::kit::{disk, needs};

const DISK_ID: [u8; 16] = *b"\x01\x23\x45\x67\x89\xab\x4d\xef\x81\x23\x45\x67\x89\xab\xcd\xef";

/// As in a PARTUUID.
fn guid_text(id: [u8; 16]) -> String {
    let mut text = String::new();
    for (at, byte) in id.iter().enumerate() {
        let dash = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
        write!(text, "{dash}{byte:02X}").unwrap();
    }
    text
}

fn partition(number: u32, start: u64, size: u64, kind: Kind, name: &str) -> NewPartition {
    let mut id = DISK_ID;
    id[15] = u8::try_from(number).unwrap();
    NewPartition { number, start, size, kind, name: name.into(), id }
}

/// Six partitions as an encrypted disk has them, each smaller, and one at the end with the last number.
fn encrypted_disk(disk: u64, sector: u64) -> Vec<NewPartition> {
    let names = ["balena-efi", "resin-boot", "resin-rootA", "resin-rootB", "resin-state", "resin-data"];
    let mut list: Vec<NewPartition> = names
        .iter()
        .zip(1..)
        .map(|(name, number)| {
            let kind = if number == 1 { Kind::EfiSystem } else { Kind::LinuxData };
            partition(number, MIB + u64::from(number) * MIB, MIB, kind, name)
        })
        .collect();
    // The bytes from there on are those of the backup.
    let end = (disk / sector - 1 - 16384 / sector) * sector;
    list.push(partition(
        128,
        end - 2 * sector,
        2 * sector,
        Kind::LinuxData,
        "a name of thirty-six characters, full",
    ));
    list.last_mut().unwrap().name.truncate(36);
    list
}

/// Lets sgdisk write the same table onto an empty disk.
fn by_sgdisk(disk: &Path, sector: u64, partitions: &[NewPartition]) {
    let mut args = vec!["-a".to_owned(), "1".to_owned(), "-U".to_owned(), guid_text(DISK_ID)];
    for p in partitions {
        let (first, last) = (p.start / sector, (p.start + p.size) / sector - 1);
        let kind = match p.kind {
            Kind::EfiSystem => "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
            Kind::LinuxData => "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
        };
        for (option, value) in [
            ("-n", format!("{first}:{last}")),
            ("-t", kind.to_owned()),
            ("-c", p.name.clone()),
            ("-u", guid_text(p.id)),
        ] {
            args.extend([option.to_owned(), format!("{}:{value}", p.number)]);
        }
    }
    args.push(text(disk).to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    run("sgdisk", &args, None);
}

fn read(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn assert_equal(disk: &Path, table: &NewTable, what: &str) {
    for (copy, offset, ours) in
        [("primary", 0, &table.primary), ("backup", table.backup_start, &table.backup)]
    {
        let theirs = read(disk, offset, ours.len());
        let differs = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{what}: the {copy} differs from this byte on");
    }
}

fn write(disk: &Path, table: &NewTable) {
    let file = File::options().write(true).open(disk).unwrap();
    file.write_all_at(&table.primary, 0).unwrap();
    file.write_all_at(&table.backup, table.backup_start).unwrap();
}

#[test]
fn each_byte_is_that_of_sgdisk() {
    needs!(tools);
    let bench = Bench::new();
    let sizes = [
        24 * MIB,
        // Parts of a sector at the end.
        24 * MIB + 511,
        24 * MIB - 1,
        // The largest disk whose last cylinder the protective MBR can name, and two larger ones.
        1024 * 255 * 63 * 512,
        1024 * 255 * 63 * 512 + 512,
        64 << 30,
        // The largest disk whose sectors the protective MBR can count, and two larger ones.
        2 << 40,
        (2 << 40) + 512,
        3 << 40,
    ];
    let compare = |size: u64| {
        let path = bench.sparse(&size.to_string(), size);
        let partitions = encrypted_disk(size, 512);
        by_sgdisk(&path, 512, &partitions);
        assert_equal(&path, &gpt(size, 512, DISK_ID, &partitions).unwrap(), &format!("{size} bytes"));
    };
    // sgdisk waits for a second after it has written.
    std::thread::scope(|scope| {
        for size in sizes {
            scope.spawn(move || compare(size));
        }
    });
}

#[test]
fn each_byte_is_that_of_sgdisk_on_the_smallest_disk() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.sparse("small.img", 68 * 512);
    let only = [partition(1, 34 * 512, 512, Kind::EfiSystem, "")];
    by_sgdisk(&path, 512, &only);
    assert_equal(&path, &gpt(68 * 512, 512, DISK_ID, &only).unwrap(), "one usable sector");
}

#[test]
fn each_byte_is_that_of_sgdisk_on_sectors_of_4096_bytes() {
    needs!(needs::can_run);
    let dir = disk::folder();
    for size in [24 * MIB, 40 * MIB + 3 * 4096, 9 << 30] {
        let file = dir.path().join("4k.img");
        File::create(&file).unwrap().set_len(size).unwrap();
        let device = disk::Loop::over(&file, &["--sector-size", "4096"]);
        let partitions = encrypted_disk(size, 4096);
        by_sgdisk(&device.node, 4096, &partitions);
        let table = gpt(size, 4096, DISK_ID, &partitions).unwrap();
        assert_equal(&device.node, &table, &format!("{size} bytes"));
        drop(device);
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn sgdisk_and_sfdisk_find_no_fault() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.sparse("ours.img", 64 * MIB);
    let mut partitions = encrypted_disk(64 * MIB, 512);
    let disk_id = random_guid().unwrap();
    for p in &mut partitions {
        p.id = random_guid().unwrap();
    }
    write(&path, &gpt(64 * MIB, 512, disk_id, &partitions).unwrap());
    let report = run("sgdisk", &["-v", text(&path)], None);
    assert!(report.contains("No problems found"), "{report}");
    let dump = run("sfdisk", &["-d", text(&path)], None);
    assert!(dump.contains(&format!("label-id: {}", guid_text(disk_id))), "{dump}");
    for p in &partitions {
        let line = dump.lines().find(|line| line.contains(&guid_text(p.id))).unwrap();
        assert!(line.contains(&format!("start={:>12}, size={:>12}", p.start / 512, p.size / 512)), "{line}");
        assert!(line.contains(&format!("name=\"{}\"", p.name)), "{line}");
    }
}

/// Names of other scripts, each as long as possible; the last one has pairs of units.
fn long_names() -> [String; 4] {
    ["ü".repeat(36), "日本".repeat(18), "e\u{301}".repeat(18), "🦀".repeat(18)]
}

#[test]
fn names_of_any_script_are_those_of_sgdisk() {
    needs!(tools);
    let bench = Bench::new();
    let path = bench.sparse("names.img", 24 * MIB);
    let partitions: Vec<_> = (1..)
        .zip(long_names())
        .map(|(n, name)| partition(n, u64::from(n) * MIB, MIB, Kind::LinuxData, &name))
        .collect();
    by_sgdisk(&path, 512, &partitions);
    assert_equal(&path, &gpt(24 * MIB, 512, DISK_ID, &partitions).unwrap(), "names");
}

#[test]
fn a_name_of_one_unit_more_is_refused() {
    for sector in [512, 4096] {
        for name in long_names() {
            let list = |name: &str| [partition(1, MIB, MIB, Kind::EfiSystem, name)];
            assert_reads_back(
                8 * MIB,
                sector,
                &list(&name),
                &gpt(8 * MIB, sector, DISK_ID, &list(&name)).unwrap(),
            );
            assert!(gpt(8 * MIB, sector, DISK_ID, &list(&format!("{name}x"))).is_err(), "{name}");
        }
    }
}

#[test]
fn all_numbers_are_used() {
    for sector in [512_u32, 4096] {
        let of = |number: u32| {
            partition(
                number,
                MIB + u64::from(129 - number) * 4096,
                4096,
                Kind::LinuxData,
                &format!("{number}"),
            )
        };
        let list: Vec<_> = (1..=128).map(of).collect();
        let table = gpt(8 * MIB, sector, DISK_ID, &list).unwrap();
        assert_reads_back(8 * MIB, sector, &list, &table);
        let more = [list, vec![partition(129, 4 * MIB, 4096, Kind::LinuxData, "")]].concat();
        assert!(gpt(8 * MIB, sector, DISK_ID, &more).is_err());
    }
}

/// Read from the disk that has this table and zeroes elsewhere.
fn on_disk(table: &NewTable, disk: u64) -> impl FnMut(u64, &mut [u8]) -> io::Result<()> {
    move |offset, buf| {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > disk) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (at, byte) in (offset..).zip(buf) {
            let of = |bytes: &[u8], start: u64| {
                bytes.get(usize::try_from(at.checked_sub(start)?).unwrap()).copied()
            };
            *byte = of(&table.primary, 0).or_else(|| of(&table.backup, table.backup_start)).unwrap_or(0);
        }
        Ok(())
    }
}

/// The table reads back as it was given, in both copies, by our reader and by the `gpt` crate.
fn assert_reads_back(disk: u64, sector: u32, partitions: &[NewPartition], table: &NewTable) {
    let mut expected = partitions.to_vec();
    expected.sort_by_key(|p| p.number);
    let places: Vec<_> = expected.iter().map(|p| (p.number, p.start, p.size, p.name.clone())).collect();

    // `analyse` reads both copies and compares them; `of_disk` reads a disk in use.
    let analysis = analyse(&mut on_disk(table, disk), Some(disk)).ok().unwrap();
    assert!(analysis.complete);
    let whole = disk - disk % u64::from(sector);
    let backup = table.backup_start..whole;
    assert_eq!((table.backup.len() as u64, analysis.span), (whole - table.backup_start, whole));
    let read = of_disk(&mut on_disk(table, disk), disk).ok().unwrap();
    assert_eq!(read, analysis.table);
    assert_eq!((read.kind, read.sector_size, read.backup), (TableKind::Gpt, sector, Some(backup)));
    let found: Vec<_> =
        read.partitions.into_iter().map(|p| (p.index, p.start, p.size, p.name.unwrap_or_default())).collect();
    assert_eq!(found, places);

    let file = tempfile::tempfile().unwrap();
    file.set_len(disk).unwrap();
    file.write_all_at(&table.primary, 0).unwrap();
    file.write_all_at(&table.backup, table.backup_start).unwrap();
    let size = match sector {
        512 => gpt::disk::LogicalBlockSize::Lb512,
        _ => gpt::disk::LogicalBlockSize::Lb4096,
    };
    let config = gpt::GptConfig::new().logical_block_size(size).only_valid_headers(true);
    let other = config.open_from_device(file).unwrap();
    assert_eq!(*other.guid().as_bytes(), DISK_ID);
    let (first, second) = (other.primary_header().unwrap(), other.backup_header().unwrap());
    let bytes = u64::from(sector);
    assert_eq!((first.current_lba, first.backup_lba, first.part_start), (1, whole / bytes - 1, 2));
    assert_eq!((second.current_lba, second.backup_lba), (whole / bytes - 1, 1));
    assert_eq!(second.part_start, table.backup_start / bytes);
    assert_eq!(first.crc32_parts, second.crc32_parts);
    let found: Vec<_> = other
        .partitions()
        .iter()
        .map(|(number, p)| {
            let kind = match p.part_type_guid {
                gpt::partition_types::EFI => Kind::EfiSystem,
                gpt::partition_types::LINUX_FS => Kind::LinuxData,
                ref kind => panic!("{kind:?}"),
            };
            assert_eq!(p.flags, 0);
            NewPartition {
                number: *number,
                start: p.first_lba * bytes,
                size: (p.last_lba - p.first_lba + 1) * bytes,
                kind,
                name: p.name.clone(),
                id: *p.part_guid.as_bytes(),
            }
        })
        .collect();
    assert_eq!(found, expected);
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::EfiSystem), Just(Kind::LinuxData)]
}

fn names() -> impl Strategy<Value = String> {
    prop_oneof!["[a-zA-Z-]{0,36}", "\\PC{0,18}"]
}

/// A disk, its sector size, and partitions that fit: numbers, gaps and sizes in any order.
fn fitting() -> impl Strategy<Value = (u64, u32, Vec<NewPartition>)> {
    let one = (1..5000_u64, 0..5000_u64, kinds(), names(), any::<[u8; 15]>());
    let numbers = prop::sample::subsequence((1..=128).collect::<Vec<u32>>(), 1..20).prop_shuffle();
    (
        prop::sample::select(vec![512_u32, 4096]),
        0..4096_u64,
        prop::collection::vec(one, 20),
        numbers,
        prop_oneof![Just(0), 0..5000_u64, Just(1 << 31)],
    )
        .prop_map(|(sector, rest, parts, numbers, free)| {
            let bytes = u64::from(sector);
            let mut at = 2 + 16384 / bytes;
            let mut list = Vec::new();
            for (number, (size, gap, kind, name, random)) in numbers.into_iter().zip(parts) {
                let mut id = [u8::try_from(number).unwrap(); 16];
                id[1..].copy_from_slice(&random);
                list.push(NewPartition {
                    number,
                    start: (at + gap) * bytes,
                    size: size * bytes,
                    kind,
                    name,
                    id,
                });
                at += gap + size;
            }
            let sectors = at + free + 1 + 16384 / bytes;
            (sectors * bytes + rest % bytes, sector, list)
        })
}

/// A list that fitted, with a number in it changed by a little or at random.
fn changed() -> impl Strategy<Value = (u64, u32, Vec<NewPartition>)> {
    let by =
        prop_oneof![-3..4_i64, (-9..10_i64).prop_map(|n| n * 512), (-99..100_i64).prop_map(|n| n * 4096)];
    let change = (0..6_u32, any::<prop::sample::Index>(), by, prop::option::weighted(0.1, any::<u64>()));
    (fitting(), change).prop_map(|((mut disk, mut sector, mut list), (field, at, by, any))| {
        let at = at.index(list.len());
        let new = |old: u64| any.unwrap_or_else(|| old.wrapping_add_signed(by));
        let new_u32 = |old: u32| u32::try_from(new(old.into()) & u64::from(u32::MAX)).unwrap();
        match field {
            0 => disk = new(disk),
            1 => sector = if by % 2 == 0 { 4608 - sector } else { new_u32(sector) },
            2 => list[at].number = new_u32(list[at].number),
            3 => list[at].start = new(list[at].start),
            4 => list[at].size = new(list[at].size),
            _ => list[at].id = list[0].id,
        }
        (disk, sector, list)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn any_list_that_fits_reads_back_as_it_was_given((disk, sector, list) in fitting()) {
        let table = gpt(disk, sector, DISK_ID, &list).unwrap();
        assert_reads_back(disk, sector, &list, &table);
    }

    #[test]
    fn one_sector_less_is_refused((disk, sector, list) in fitting(), at in any::<prop::sample::Index>()) {
        let end = list.iter().map(|p| p.start + p.size).max().unwrap();
        let least = end + u64::from(sector) + 16384;
        prop_assert!(gpt(least, sector, DISK_ID, &list).is_ok());
        prop_assert!(gpt(least - 1, sector, DISK_ID, &list).is_err());
        // A partition that begins a sector earlier meets the one before it, or the table, or a gap.
        let mut earlier = list;
        let moved = at.get(&earlier).clone();
        let at = earlier.iter().position(|p| p.number == moved.number).unwrap();
        earlier[at].start -= u64::from(sector);
        earlier[at].size += u64::from(sector);
        let before = earlier.iter().filter(|p| p.number != moved.number).map(|p| p.start + p.size);
        let before = before.filter(|end| *end <= moved.start).max().unwrap_or(16384 + 2 * u64::from(sector));
        prop_assert_eq!(gpt(disk, sector, DISK_ID, &earlier).is_ok(), before < moved.start);
    }

    #[test]
    fn any_other_list_is_refused_or_reads_back((disk, sector, list) in changed()) {
        match gpt(disk, sector, DISK_ID, &list) {
            // The largest file of ext4 has 16 TiB.
            Ok(table) if disk < 1 << 44 => assert_reads_back(disk, sector, &list, &table),
            Ok(_) => {}
            Err(why) => prop_assert!(!why.to_string().is_empty()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(30) })]

    /// Of a file, it reads sectors of 512 bytes only.
    #[test]
    fn sgdisk_finds_no_fault_in_any_list_that_fits((disk, sector, list) in fitting()) {
        if !tools(test_name!()) {
            return Ok(());
        }
        prop_assume!(sector == 512);
        let bench = Bench::new();
        let path = bench.sparse("any.img", disk);
        write(&path, &gpt(disk, sector, DISK_ID, &list).unwrap());
        let report = run("sgdisk", &["-v", text(&path)], None);
        prop_assert!(report.contains("No problems found"), "{}", report);
    }
}
