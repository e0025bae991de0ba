//! GUID partition tables (UEFI specification 2.10, chapter 5).

use std::ops::Range;

use super::{Flaw, Partition, ReadAt, get};

/// 1024 entries of 512 bytes; 128 of 128 bytes are usual.
const MAX_ARRAY: u64 = 512 << 10;

/// From the backup's entries to its end: memory holds them until the rest of the image is verified.
const MAX_BACKUP: u64 = 1 << 20;

const HEADER: usize = 92;

/// Positions are in LBAs.
#[derive(Clone, PartialEq, Eq)]
struct Header {
    own: u64,
    alternate: u64,
    first_usable: u64,
    last_usable: u64,
    disk: [u8; 16],
    array: u64,
    count: u32,
    entry_len: u32,
    array_crc: u32,
}

pub(super) struct Primary {
    sector: u64,
    header: Header,
    pub(super) partitions: Vec<Partition>,
    /// End of the sector with the backup header, in bytes.
    pub(super) span: u64,
}

impl Primary {
    pub(super) fn sector_size(&self) -> u32 {
        u32::try_from(self.sector).unwrap_or(512)
    }

    pub(super) fn areas(&self) -> [Range<u64>; 2] {
        let array = self.header.array.saturating_mul(self.sector);
        let len = self.header.array_len().next_multiple_of(self.sector);
        [self.sector..2 * self.sector, array..array.saturating_add(len)]
    }

    /// Where the backup is if its entry array ends right before its header, as every tool writes it.
    pub(super) fn assumed_backup(&self) -> Range<u64> {
        let array = self.header.array_len().next_multiple_of(self.sector);
        self.span.saturating_sub(array + self.sector)..self.span
    }
}

impl Header {
    fn parse(sector: &[u8], own: u64, name: &str) -> Result<Header, Flaw> {
        let le32 = |at: usize| -> u32 {
            sector.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        let le64 = |at: usize| u64::from(le32(at)) | u64::from(le32(at + 4)) << 32;
        if !sector.starts_with(b"EFI PART") {
            return Err(Flaw::Invalid(format!("there is no {name} GPT header where it should be")));
        }
        let len = usize::try_from(le32(12)).unwrap_or(usize::MAX);
        let covered = sector.get(..len).filter(|c| c.len() >= HEADER);
        let Some((before, after)) = covered.and_then(|c| c.get(..16).zip(c.get(20..))) else {
            return Err(Flaw::Invalid(format!("the {name} GPT header claims {len} bytes")));
        };
        let mut crc = crc32fast::Hasher::new();
        crc.update(before);
        crc.update(&[0; 4]);
        crc.update(after);
        if crc.finalize() != le32(16) {
            return Err(Flaw::Invalid(format!("the checksum of the {name} GPT header does not match")));
        }
        let header = Header {
            own: le64(24),
            alternate: le64(32),
            first_usable: le64(40),
            last_usable: le64(48),
            disk: sector.get(56..72).and_then(|b| b.try_into().ok()).unwrap_or_default(),
            array: le64(72),
            count: le32(80),
            entry_len: le32(84),
            array_crc: le32(88),
        };
        if header.own != own {
            return Err(Flaw::Invalid(format!(
                "the {name} GPT header says it is sector {}, not {own}",
                header.own
            )));
        }
        let entry_ok = header.entry_len >= 128 && header.entry_len.is_power_of_two();
        if !entry_ok || header.array_len() > MAX_ARRAY {
            let (count, len) = (header.count, header.entry_len);
            return Err(Flaw::Invalid(format!("the {name} GPT claims {count} entries of {len} bytes")));
        }
        Ok(header)
    }

    fn array_len(&self) -> u64 {
        u64::from(self.count) * u64::from(self.entry_len)
    }

    fn entries(&self, read_at: &mut ReadAt<'_>, sector: u64, name: &str) -> Result<Vec<u8>, Flaw> {
        let len = usize::try_from(self.array_len()).unwrap_or(0);
        let what = format!("the {name} GPT's entries");
        let array = get(read_at, bytes(self.array, sector)?, len, &what)?;
        if crc32fast::hash(&array) != self.array_crc {
            return Err(Flaw::Invalid(format!("the checksum of {what} does not match")));
        }
        Ok(array)
    }
}

/// Byte offset of a sector. Refuses one that is larger than a file can be.
fn bytes(lba: u64, sector: u64) -> Result<u64, Flaw> {
    lba.checked_mul(sector)
        .filter(|b| *b < 1 << 62)
        .ok_or_else(|| Flaw::Invalid(format!("sector {lba} cannot exist")))
}

/// Tries sectors of 512 bytes, then of 4096.
pub(super) fn primary(read_at: &mut ReadAt<'_>) -> Result<Primary, Flaw> {
    let at = |sector: u64| usize::try_from(sector).map(|len| (sector, len)).unwrap_or((512, 512));
    let mut first_flaw = None;
    for (sector, len) in [at(512), at(4096)] {
        let header = get(read_at, sector, len, "the primary GPT header")
            .and_then(|raw| Header::parse(&raw, 1, "primary").map(|h| (h, raw)));
        match header {
            Ok((header, _)) => return with_entries(read_at, sector, header),
            Err(Flaw::Pending) => return Err(Flaw::Pending),
            // The message for 512 bytes is the better one, unless that size finds nothing at all.
            Err(flaw) => drop(first_flaw.get_or_insert(flaw)),
        }
    }
    Err(first_flaw.unwrap_or(Flaw::Pending))
}

fn with_entries(read_at: &mut ReadAt<'_>, sector: u64, header: Header) -> Result<Primary, Flaw> {
    let array = header.entries(read_at, sector, "primary")?;
    let array_end = header.array.saturating_add(header.array_len().div_ceil(sector));
    let in_order = header.array >= 2
        && array_end <= header.first_usable
        && header.first_usable <= header.last_usable.saturating_add(1)
        && header.last_usable < header.alternate;
    if !in_order {
        return Err(Flaw::Invalid(format!(
            "its usable range, sectors {} to {}, does not lie between the two GPTs",
            header.first_usable, header.last_usable
        )));
    }
    let span = bytes(header.alternate.saturating_add(1), sector)?;
    let entry_len = usize::try_from(header.entry_len).unwrap_or(128);
    let mut partitions = Vec::new();
    for (entry, index) in array.chunks_exact(entry_len).zip(1..) {
        if let Some(partition) = partition(entry, index, sector, &header)? {
            partitions.push(partition);
        }
    }
    if partitions.is_empty() {
        return Err(Flaw::Missing("its GPT is empty".into()));
    }
    Ok(Primary { sector, header, partitions, span })
}

fn partition(entry: &[u8], index: u32, sector: u64, header: &Header) -> Result<Option<Partition>, Flaw> {
    let le64 = |at: usize| -> u64 {
        entry.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    if entry.iter().take(16).all(|b| *b == 0) {
        return Ok(None);
    }
    let (first, last) = (le64(32), le64(40));
    if first > last || first < header.first_usable || last > header.last_usable {
        return Err(Flaw::Invalid(format!(
            "partition {index}, sectors {first} to {last}, leaves the usable range, {} to {}",
            header.first_usable, header.last_usable
        )));
    }
    let (start, end) = (bytes(first, sector)?, bytes(last + 1, sector)?);
    let units: Vec<u16> = entry
        .get(56..128)
        .unwrap_or_default()
        .chunks_exact(2)
        .map(|pair| pair.try_into().map_or(0, u16::from_le_bytes))
        .take_while(|unit| *unit != 0)
        .collect();
    let name = Some(String::from_utf16_lossy(&units)).filter(|n| !n.is_empty());
    Ok(Some(Partition { index, start, size: end - start, name, label: None, file_system: None }))
}

pub(super) fn backup(read_at: &mut ReadAt<'_>, primary: &Primary) -> Result<Range<u64>, Flaw> {
    let (sector, first) = (primary.sector, &primary.header);
    let assumed = primary.assumed_backup();
    // One read for array and header where they are expected: in a stream the array comes first.
    let len = usize::try_from(assumed.end - assumed.start).unwrap_or(0);
    let raw = get(read_at, assumed.start, len, "the backup GPT")?;
    let at = len.saturating_sub(usize::try_from(sector).unwrap_or(0));
    let header = Header::parse(raw.get(at..).unwrap_or_default(), first.alternate, "backup")?;
    let expected = Header { own: first.alternate, alternate: 1, array: header.array, ..first.clone() };
    if header != expected {
        return Err(Flaw::Invalid("its backup GPT does not match the primary".into()));
    }
    let array_end = header.array.saturating_add(header.array_len().div_ceil(sector));
    if header.array <= first.last_usable || array_end > header.own {
        return Err(Flaw::Invalid("the entries of its backup GPT lie in the usable range".into()));
    }
    let space = primary.assumed_backup().end.saturating_sub(bytes(header.array, sector)?);
    if space > MAX_BACKUP {
        return Err(Flaw::Invalid("the entries of its backup GPT lie far from their header".into()));
    }
    // The checksum equals the primary's, as just compared, so the entries are the same.
    header.entries(read_at, sector, "backup")?;
    Ok(bytes(header.array, sector)?..primary.span)
}
