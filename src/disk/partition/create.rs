//! Makes GUID partition tables (UEFI specification 2.10, chapter 5), with the bytes that sgdisk writes.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;

const ENTRY_COUNT: u32 = 128;
const ENTRY_LEN: u32 = 128;
/// Bytes of all entries, a multiple of each sector size.
const ENTRIES_LEN: u64 = 128 * 128;
const HEADER_LEN: u32 = 92;
const NAME_UNITS: usize = 36;

/// Positions above are no file offsets, and the reader of tables refuses them.
const MAX_DISK: u64 = 1 << 62;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    EfiSystem,
    LinuxData,
}

impl Kind {
    fn guid(self) -> [u8; 16] {
        match self {
            Kind::EfiSystem => 0xC12A7328_F81F_11D2_BA4B_00A0C93EC93B_u128.to_be_bytes(),
            Kind::LinuxData => 0x0FC63DAF_8483_4772_8E79_3D69D8477DE4_u128.to_be_bytes(),
        }
    }
}

/// `start` and `size` are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPartition {
    /// 1 to 128.
    pub number: u32,
    pub start: u64,
    pub size: u64,
    pub kind: Kind,
    pub name: String,
    /// In the order of its text, as in a PARTUUID. On the disk, the first three groups are reversed.
    pub id: [u8; 16],
}

/// Both copies of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTable {
    /// From byte 0 of the disk: protective MBR, header, entries.
    pub primary: Vec<u8>,
    /// Entries, header.
    pub backup: Vec<u8>,
    pub backup_start: u64,
}

/// Why no table was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn refused<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(why.into()))
}

/// Sizes in bytes, positions in sectors.
#[derive(Clone, Copy)]
struct Geometry {
    sector: u64,
    sectors: u64,
}

impl Geometry {
    fn new(disk: u64, sector: u32) -> Result<Geometry, Refusal> {
        // Our reader knows these sizes only.
        if ![512, 4096].contains(&sector) {
            return refused(format!("sectors of {sector} bytes are not supported, only of 512 or 4096"));
        }
        if disk >= MAX_DISK {
            return refused(format!("a disk cannot have {disk} bytes"));
        }
        let sector = u64::from(sector);
        Ok(Geometry { sector, sectors: disk / sector })
    }

    fn array_sectors(self) -> u64 {
        ENTRIES_LEN / self.sector
    }

    fn first_usable(self) -> u64 {
        2 + self.array_sectors()
    }

    /// The sector after the last usable one: the backup's entries begin there. 0 on a disk without space for both copies.
    fn usable_end(self) -> u64 {
        self.sectors.saturating_sub(self.array_sectors() + 1)
    }

    fn usable(self) -> Range<u64> {
        self.first_usable() * self.sector..self.usable_end() * self.sector
    }
}

/// The bytes of a disk of `disk` bytes that partitions of a new table may have. Empty if the disk is too small for a table.
pub(crate) fn usable(disk: u64, sector: u32) -> Result<Range<u64>, Refusal> {
    Geometry::new(disk, sector).map(Geometry::usable)
}

/// The bytes of the new table itself, in the order of [`super::Table::areas`]: MBR, header, entries, backup.
pub(crate) fn areas(disk: u64, sector: u32) -> Result<[Range<u64>; 4], Refusal> {
    let geometry = Geometry::new(disk, sector)?;
    let (sector, usable) = (geometry.sector, geometry.usable());
    let backup = usable.end..geometry.sectors * sector;
    Ok([super::mbr::TABLE, sector..2 * sector, 2 * sector..usable.start, backup])
}

/// The table of a disk of `disk` bytes. Bytes after the last whole sector are left unused.
pub fn gpt(
    disk: u64,
    sector: u32,
    disk_id: [u8; 16],
    partitions: &[NewPartition],
) -> Result<NewTable, Refusal> {
    let geometry = Geometry::new(disk, sector)?;
    let usable = geometry.usable();
    if usable.is_empty() {
        return refused(format!("a disk of {disk} bytes is too small for a partition table"));
    }
    // The reader takes an empty table for a missing one.
    if partitions.is_empty() {
        return refused("a table needs a partition");
    }
    for partition in partitions {
        check(partition, geometry.sector, &usable)?;
    }
    check_numbers(partitions)?;
    check_ids(disk_id, partitions)?;
    check_overlaps(partitions)?;

    let entries = entries(geometry, partitions);
    let backup_array = geometry.usable_end();
    let last = geometry.sectors - 1;
    let mut primary = protective_mbr(geometry);
    primary.extend(header(geometry, disk_id, &entries, Place { own: 1, alternate: last, array: 2 }));
    primary.extend(&entries);
    let mut backup = entries.clone();
    let place = Place { own: last, alternate: 1, array: backup_array };
    backup.extend(header(geometry, disk_id, &entries, place));
    Ok(NewTable { primary, backup, backup_start: backup_array * geometry.sector })
}

fn check(partition: &NewPartition, sector: u64, usable: &Range<u64>) -> Result<(), Refusal> {
    let NewPartition { number, start, size, name, .. } = partition;
    if !(1..=ENTRY_COUNT).contains(number) {
        return refused(format!("a partition cannot have number {number}, only 1 to {ENTRY_COUNT}"));
    }
    for (what, bytes) in [("start", *start), ("size", *size)] {
        if !bytes.is_multiple_of(sector) {
            return refused(format!(
                "the {what} of partition {number}, {bytes} bytes, is not a multiple of {sector}"
            ));
        }
    }
    if *size == 0 {
        return refused(format!("partition {number} is empty"));
    }
    let end = start.checked_add(*size);
    if *start < usable.start || end.is_none_or(|end| end > usable.end) {
        return refused(format!(
            "partition {number}, {size} bytes from byte {start} on, leaves the usable range, {} to {}",
            usable.start, usable.end
        ));
    }
    let units = name.encode_utf16().count();
    if units > NAME_UNITS {
        return refused(format!(
            "the name of partition {number} has {units} units of UTF-16; at most {NAME_UNITS} are possible"
        ));
    }
    if name.contains('\0') {
        return refused(format!("the name of partition {number} has a zero character"));
    }
    Ok(())
}

fn check_numbers(partitions: &[NewPartition]) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    match partitions.iter().find(|p| !seen.insert(p.number)) {
        Some(p) => refused(format!("two partitions have number {}", p.number)),
        None => Ok(()),
    }
}

/// Systems find disks and partitions by these identifiers.
fn check_ids(disk_id: [u8; 16], partitions: &[NewPartition]) -> Result<(), Refusal> {
    if disk_id == [0; 16] {
        return refused("the identifier of the disk is zero");
    }
    let mut seen = BTreeSet::from([disk_id]);
    for p in partitions {
        if p.id == [0; 16] {
            return refused(format!("the identifier of partition {} is zero", p.number));
        }
        if !seen.insert(p.id) {
            return refused(format!("the identifier of partition {} is used twice", p.number));
        }
    }
    Ok(())
}

fn check_overlaps(partitions: &[NewPartition]) -> Result<(), Refusal> {
    let mut sorted: Vec<&NewPartition> = partitions.iter().collect();
    sorted.sort_by_key(|p| p.start);
    for pair in sorted.windows(2) {
        if let [a, b] = pair
            && b.start < a.start.saturating_add(a.size)
        {
            return refused(format!("partitions {} and {} overlap", a.number, b.number));
        }
    }
    Ok(())
}

/// One entry over the whole disk, for systems that do not know GPT.
fn protective_mbr(geometry: Geometry) -> Vec<u8> {
    // Capped as in the specification, 5.2.3.
    let sectors = u32::try_from(geometry.sectors - 1).unwrap_or(u32::MAX);
    let mut mbr = vec![0; 446];
    mbr.push(0);
    mbr.extend(chs(1));
    mbr.push(0xee);
    mbr.extend(chs(sectors));
    mbr.extend(1_u32.to_le_bytes());
    mbr.extend(sectors.to_le_bytes());
    mbr.resize(510, 0);
    mbr.extend([0x55, 0xaa]);
    padded(mbr, geometry)
}

/// Head, sector and cylinder of an LBA, for 255 heads and 63 sectors as sgdisk assumes them. All bits are set for an LBA past 1024
/// cylinders.
fn chs(lba: u32) -> [u8; 3] {
    const HEADS: u32 = 255;
    const SECTORS: u32 = 63;
    let cylinder = lba / (HEADS * SECTORS);
    let (head, sector) = (lba / SECTORS % HEADS, lba % SECTORS + 1);
    // The two high bits of the cylinder are in the byte of the sector.
    match (u8::try_from(head), u8::try_from(sector | (cylinder >> 8) << 6), u8::try_from(cylinder & 0xff)) {
        (Ok(head), Ok(sector), Ok(low)) if cylinder < 1024 => [head, sector, low],
        _ => [0xff; 3],
    }
}

/// Sectors of a copy.
#[derive(Clone, Copy)]
struct Place {
    own: u64,
    alternate: u64,
    array: u64,
}

fn header(geometry: Geometry, disk_id: [u8; 16], entries: &[u8], place: Place) -> Vec<u8> {
    let with_checksum = |checksum: u32| {
        let mut header = b"EFI PART".to_vec();
        header.extend(0x0001_0000_u32.to_le_bytes());
        header.extend(HEADER_LEN.to_le_bytes());
        header.extend(checksum.to_le_bytes());
        header.extend([0; 4]);
        for lba in [place.own, place.alternate, geometry.first_usable(), geometry.usable_end() - 1] {
            header.extend(lba.to_le_bytes());
        }
        header.extend(on_disk(disk_id));
        header.extend(place.array.to_le_bytes());
        for word in [ENTRY_COUNT, ENTRY_LEN, crc32fast::hash(entries)] {
            header.extend(word.to_le_bytes());
        }
        header
    };
    // The checksum is that of the header with zero in its place.
    padded(with_checksum(crc32fast::hash(&with_checksum(0))), geometry)
}

fn entries(geometry: Geometry, partitions: &[NewPartition]) -> Vec<u8> {
    let by_number = |number| partitions.iter().find(|p| p.number == number);
    (1..=ENTRY_COUNT)
        .flat_map(|number| by_number(number).map_or_else(|| vec![0; 128], |p| entry(geometry, p)))
        .collect()
}

fn entry(geometry: Geometry, partition: &NewPartition) -> Vec<u8> {
    let first = partition.start / geometry.sector;
    let last = first + partition.size / geometry.sector - 1;
    let mut entry = on_disk(partition.kind.guid()).to_vec();
    entry.extend(on_disk(partition.id));
    // The third word has the attributes.
    for word in [first, last, 0] {
        entry.extend(word.to_le_bytes());
    }
    entry.extend(partition.name.encode_utf16().flat_map(u16::to_le_bytes));
    entry.resize(128, 0);
    entry
}

/// The specification, appendix A: the first three groups of a GUID are little-endian numbers.
fn on_disk(guid: [u8; 16]) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = guid;
    let [i, j, k, l, m, n, o, p] = rest;
    [d, c, b, a, f, e, h, g, i, j, k, l, m, n, o, p]
}

fn padded(mut bytes: Vec<u8>, geometry: Geometry) -> Vec<u8> {
    bytes.resize(usize::try_from(geometry.sector).unwrap_or(bytes.len()), 0);
    bytes
}

/// A random identifier (RFC 4122, version 4), in the order of its text.
pub fn random_guid() -> io::Result<[u8; 16]> {
    // The kernel's, even in tests with another root: it is not a fact about a device.
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let digits = text.trim().replace('-', "");
    u128::from_str_radix(&digits, 16).map(u128::to_be_bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const DISK_ID: [u8; 16] = [0xdd; 16];

    fn partition(number: u32, start: u64, size: u64) -> NewPartition {
        let id = [u8::try_from(number % 200 + 1).unwrap(); 16];
        NewPartition { number, start, size, kind: Kind::LinuxData, name: format!("p{number}"), id }
    }

    fn refusal(disk: u64, sector: u32, partitions: &[NewPartition]) -> String {
        gpt(disk, sector, DISK_ID, partitions).unwrap_err().to_string()
    }

    #[test]
    fn the_usable_range_lies_between_both_copies() {
        assert_eq!(usable(24 * MIB, 512).unwrap(), 34 * 512..24 * MIB - 33 * 512);
        assert_eq!(usable(24 * MIB, 4096).unwrap(), 6 * 4096..24 * MIB - 5 * 4096);
        assert_eq!(usable(24 * MIB + 4095, 4096).unwrap(), usable(24 * MIB, 4096).unwrap());
        assert!(usable(67 * 512, 512).unwrap().is_empty());
        assert!(usable(0, 4096).unwrap().is_empty());
        assert_eq!(usable(68 * 512, 512).unwrap(), 34 * 512..35 * 512);
    }

    #[test]
    fn a_partition_may_have_all_of_the_smallest_disk() {
        for (sector, sectors) in [(512, 68), (4096, 12)] {
            let disk = u64::from(sector) * sectors;
            let all = usable(disk, sector).unwrap();
            let table = gpt(disk, sector, DISK_ID, &[partition(1, all.start, all.end - all.start)]).unwrap();
            assert_eq!(table.primary.len() as u64, all.start);
            assert_eq!(table.backup_start, all.end);
            assert_eq!(table.backup_start + table.backup.len() as u64, disk);
            assert!(refusal(disk - 1, sector, &[partition(1, all.start, 4096)]).contains("too small"));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let good = partition(1, MIB, MIB);
        let with = |change: &dyn Fn(&mut NewPartition)| {
            let mut bad = good.clone();
            change(&mut bad);
            refusal(24 * MIB, 4096, &[bad])
        };
        assert!(with(&|p| p.number = 0).contains("number 0"));
        assert!(with(&|p| p.number = 129).contains("number 129"));
        assert!(with(&|p| p.start += 512).contains("start of partition 1, 1049088 bytes"));
        assert!(with(&|p| p.size += 512).contains("size of partition 1, 1049088 bytes"));
        assert!(with(&|p| p.size = 0).contains("partition 1 is empty"));
        assert!(with(&|p| p.start = 5 * 4096).contains("leaves the usable range, 24576 to 25145344"));
        assert!(with(&|p| p.size = 23 * MIB).contains("leaves the usable range"));
        assert!(with(&|p| p.start = u64::MAX - 4095).contains("leaves the usable range"));
        assert!(with(&|p| p.name = "x".repeat(37)).contains("37 units"));
        assert!(with(&|p| p.name = "\u{1f600}".repeat(19)).contains("38 units"));
        assert!(with(&|p| p.name = "a\0b".into()).contains("zero character"));
        assert!(with(&|p| p.id = [0; 16]).contains("identifier of partition 1 is zero"));
        assert!(with(&|p| p.id = DISK_ID).contains("identifier of partition 1 is used twice"));
        assert!(gpt(24 * MIB, 512, [0; 16], std::slice::from_ref(&good)).is_err());

        let pair = |second| refusal(24 * MIB, 512, &[good.clone(), second]);
        assert_eq!(pair(partition(1, 2 * MIB, MIB)), "two partitions have number 1");
        assert_eq!(pair(partition(2, 2 * MIB - 512, MIB)), "partitions 1 and 2 overlap");
        assert_eq!(pair(partition(2, MIB - 512, MIB)), "partitions 2 and 1 overlap");
        assert!(pair(NewPartition { id: good.id, ..partition(2, 2 * MIB, MIB) }).contains("2 is used twice"));

        for sector in [0, 1, 520, 1024, 8192, u32::MAX] {
            assert!(refusal(24 * MIB, sector, std::slice::from_ref(&good)).contains("not supported"));
        }
        assert!(refusal(1 << 62, 512, std::slice::from_ref(&good)).contains("cannot have"));
        assert!(refusal(24 * MIB, 512, &[]).contains("needs a partition"));
    }

    #[test]
    fn the_longest_name_fills_its_field() {
        let name = "\u{1f600}".repeat(18);
        let longest = NewPartition { name: name.clone(), ..partition(128, MIB, MIB) };
        let table = gpt(24 * MIB, 512, DISK_ID, &[longest]).unwrap();
        let field = &table.primary[1024 + 127 * 128 + 56..][..72];
        let units: Vec<u16> = field.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        assert_eq!(String::from_utf16(&units).unwrap(), name);
        assert_eq!(table.primary.len(), 1024 + 128 * 128);
    }

    #[test]
    fn random_identifiers_differ_and_say_their_version() {
        let (a, b) = (random_guid().unwrap(), random_guid().unwrap());
        assert_ne!(a, b);
        for id in [a, b] {
            assert_eq!((id[6] >> 4, id[8] >> 6), (4, 0b10));
        }
    }
}
