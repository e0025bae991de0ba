//! Master boot records with their chain of extended ones. Numbered as Linux does (`block/partitions/msdos.c`).

use std::collections::HashSet;
use std::ops::Range;

use super::{Flaw, Partition, ReadAt, get};

/// The table does not state the sector size; disks with other sectors use GPT.
const SECTOR: u64 = 512;

const MAX_LOGICAL: usize = 128;

const PROTECTIVE: u8 = 0xee;

pub(super) struct MbrPartitions {
    /// Without the extended partition, which holds no data of its own.
    pub(super) partitions: Vec<Partition>,
    pub(super) complete: bool,
    /// End of the last partition in bytes, the extended one included.
    pub(super) span: u64,
    /// Bytes of the table: entries of the first sector, and the extended records.
    pub(super) areas: Vec<Range<u64>>,
}

/// Entries and `55 aa` of the first sector. The bytes before them are code of the BIOS or of a board (one has 442 bytes).
pub(super) const TABLE: Range<u64> = 446..SECTOR;

/// The disk signature, which is part of the PARTUUIDs of an MBR.
pub(crate) const SIGNATURE: Range<u64> = 440..444;

#[derive(Clone, Copy)]
struct PartitionEntry {
    boot: u8,
    kind: u8,
    start: u64,
    len: u64,
}

impl PartitionEntry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }

    fn partition(&self, index: u32, base: u64) -> Partition {
        let start = (base + self.start) * SECTOR;
        Partition { index, start, size: self.len * SECTOR, name: None, label: None, file_system: None }
    }
}

fn signed(sector: &[u8]) -> bool {
    sector.get(510..512) == Some(&[0x55, 0xaa])
}

fn entries(sector: &[u8]) -> Vec<Option<PartitionEntry>> {
    let table = sector.get(446..510).unwrap_or_default();
    let parse = |raw: &[u8]| {
        let [boot, _, _, _, kind, _, _, _, s0, s1, s2, s3, l0, l1, l2, l3] = *raw else { return None };
        let start = u64::from(u32::from_le_bytes([s0, s1, s2, s3]));
        let len = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
        (kind != 0 && len != 0).then_some(PartitionEntry { boot, kind, start, len })
    };
    table.chunks_exact(16).map(parse).collect()
}

/// Whether it announces a GPT, alone or beside other entries (hybrid, as for the Raspberry Pi).
pub(super) fn is_protective(sector: &[u8]) -> bool {
    signed(sector) && entries(sector).iter().flatten().any(|e| e.kind == PROTECTIVE)
}

pub(super) fn read(read_at: &mut ReadAt<'_>, first: &[u8]) -> Result<MbrPartitions, Flaw> {
    if !signed(first) {
        return Err(Flaw::Missing("the first sector does not end with 55 aa".into()));
    }
    let slots = entries(first);
    // The boot sector of a file system without a table also ends with 55 aa, and has code or text where the table would be.
    if slots.iter().flatten().any(|e| e.boot & 0x7f != 0) {
        return Err(Flaw::Missing("the first sector is a boot sector, not a partition table".into()));
    }
    if slots.iter().flatten().next().is_none() {
        return Err(Flaw::Missing("its master boot record is empty".into()));
    }
    let mut found = MbrPartitions { partitions: Vec::new(), complete: true, span: 0, areas: vec![TABLE] };
    let mut extended = None;
    for (slot, index) in slots.iter().zip(1..) {
        let Some(entry) = slot else { continue };
        if entry.start == 0 {
            return Err(Flaw::Invalid(format!("partition {index} covers the partition table")));
        }
        if !entry.is_extended() {
            found.partitions.push(entry.partition(index, 0));
        } else if extended.replace(*entry).is_some() {
            return Err(Flaw::Invalid("it has two extended partitions".into()));
        }
    }
    if let Some(container) = extended {
        match chain(read_at, container, &mut found) {
            Err(Flaw::Pending) => found.complete = false,
            other => other?,
        }
        inside(&found.partitions, container)?;
    }
    let ends = found.partitions.iter().map(|p| p.start + p.size);
    let container_end = extended.map(|e| (e.start + e.len) * SECTOR);
    found.span = ends.chain(container_end).max().unwrap_or(0);
    Ok(found)
}

fn chain(read_at: &mut ReadAt<'_>, container: PartitionEntry, out: &mut MbrPartitions) -> Result<(), Flaw> {
    let mut seen = HashSet::new();
    let mut at = container.start;
    let mut index = 5;
    loop {
        if !seen.insert(at) || seen.len() > MAX_LOGICAL {
            return Err(Flaw::Invalid("the chain of its extended partition does not end".into()));
        }
        let raw = get(read_at, at * SECTOR, 512, "an extended partition record")?;
        out.areas.push(at * SECTOR..(at + 1) * SECTOR);
        if !signed(&raw) {
            return Err(Flaw::Invalid(format!(
                "the extended partition record in sector {at} does not end with 55 aa"
            )));
        }
        let slots = entries(&raw);
        let mut pair = slots.iter().take(2).flatten();
        if let Some(entry) = pair.clone().find(|e| !e.is_extended()) {
            if entry.start == 0 {
                return Err(Flaw::Invalid(format!("partition {index} covers its own record")));
            }
            out.partitions.push(entry.partition(index, at));
            index += 1;
        }
        match pair.find(|e| e.is_extended()) {
            Some(next) if next.start < container.len => at = container.start + next.start,
            Some(_) => return Err(Flaw::Invalid("an extended record leaves the extended partition".into())),
            None => return Ok(()),
        }
    }
}

fn inside(partitions: &[Partition], container: PartitionEntry) -> Result<(), Flaw> {
    let (start, end) = (container.start * SECTOR, (container.start + container.len) * SECTOR);
    for p in partitions {
        let (first, last) = (p.start, p.start + p.size);
        let fine = if p.index >= 5 { first > start && last <= end } else { last <= start || first >= end };
        if !fine {
            let what = if p.index >= 5 { "leaves" } else { "overlaps" };
            return Err(Flaw::Invalid(format!("partition {} {what} the extended partition", p.index)));
        }
    }
    Ok(())
}
