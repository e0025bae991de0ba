//! Partition tables and file-system headers. Pure functions over a `read_at`: an image's stream, an image file, or a disk.
//!
//! Crates for partition tables do not fit: they look for the backup GPT at the end of the device instead of where the primary
//! points, fall back to it silently, size buffers by the header, and report a stream's "not yet" as a damaged table.

pub mod create;
mod fat;
mod file_system;
mod gpt;
pub mod label;
mod mbr;

use std::fmt;
use std::io;
use std::ops::Range;

pub use create::NewTable;
pub(crate) use fat::{fat_label, file_in_fat, files_in_fat, room_in_fat};
pub use file_system::file_system;
use label::label;
pub(crate) use mbr::SIGNATURE;

/// Fills the buffer from a byte offset. `UnexpectedEof`: the device or image ends before.
pub(crate) type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a;

/// A [`ReadAt`] of bytes in memory.
pub(crate) fn of_bytes(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) -> io::Result<()> + '_ {
    |offset, out| {
        let from = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)?.get(..out.len()));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    Gpt,
    Mbr,
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableKind::Gpt => "GPT",
            TableKind::Mbr => "MBR",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Partition {
    /// As Linux counts (logical partitions from 5).
    pub index: u32,
    pub start: u64,
    pub size: u64,
    pub name: Option<String>,
    pub label: Option<String>,
    /// Content by its signature; `None` where unknown, such as a bootloader.
    pub file_system: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Table {
    pub kind: TableKind,
    /// In bytes, as the table counts.
    pub sector_size: u32,
    pub partitions: Vec<Partition>,
    /// Entry array and header of the backup GPT, in bytes.
    pub backup: Option<Range<u64>>,
    /// Bytes of the table itself, the backup included.
    #[serde(skip)]
    pub areas: Vec<Range<u64>>,
}

impl Table {
    /// Whether this is the table that was found before, by a look that may not have seen every label.
    pub(crate) fn is_still(&self, before: &Table) -> bool {
        let same = |now: &Partition, before: &Partition| {
            (now.index, now.start, now.size, &now.name)
                == (before.index, before.start, before.size, &before.name)
                && (before.label.is_none() || now.label == before.label)
        };
        // Before the backup is read, the start of its entries is only assumed.
        let end = |table: &Table| table.backup.as_ref().map(|backup| backup.end);
        (self.kind, self.sector_size, end(self)) == (before.kind, before.sector_size, end(before))
            && self.partitions.len() == before.partitions.len()
            && self.partitions.iter().zip(&before.partitions).all(|(now, before)| same(now, before))
    }
}

#[derive(Debug)]
pub enum Flaw {
    /// The stream has not yet delivered the bytes (`WouldBlock` from `read_at`).
    Pending,
    Read(io::Error),
    Missing(String),
    Invalid(String),
    /// The table refers to more bytes than the image has.
    Cut(String),
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::Pending => f.write_str("it is not there yet"),
            Flaw::Read(e) => e.fmt(f),
            Flaw::Missing(why) | Flaw::Invalid(why) | Flaw::Cut(why) => f.write_str(why),
        }
    }
}

fn get(read_at: &mut ReadAt<'_>, offset: u64, len: usize, what: &str) -> Result<Vec<u8>, Flaw> {
    let mut bytes = vec![0; len];
    match read_at(offset, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(e) => Err(match e.kind() {
            io::ErrorKind::WouldBlock => Flaw::Pending,
            io::ErrorKind::UnexpectedEof => Flaw::Cut(format!("it ends before {what} at byte {offset}")),
            _ => Flaw::Read(e),
        }),
    }
}

pub struct Analysis {
    pub table: Table,
    pub span: u64,
    pub labelled: bool,
    pub complete: bool,
}

impl Analysis {
    /// End of what the table refers to, itself included, in bytes.
    pub(crate) fn end(&self) -> u64 {
        let ends = self.table.partitions.iter().map(|p| p.start.saturating_add(p.size));
        ends.fold(self.span, u64::max)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Backup {
    /// It must belong to the primary.
    Sound,
    /// Any content: kernel and firmware start from the primary.
    Any,
}

/// Reads table, labels and signatures of an image, as far as `read_at` has the bytes. `size`: the image's, where known.
pub fn analyse(read_at: &mut ReadAt<'_>, size: Option<u64>) -> Result<Analysis, Flaw> {
    analyse_with(read_at, size, Backup::Sound)
}

/// The table of a disk of `size` bytes that is in use. Accepts a backup GPT that is damaged or belongs to another table: no
/// operation on the disk depends on it.
pub fn of_disk(read_at: &mut ReadAt<'_>, size: u64) -> Result<Table, Flaw> {
    analyse_with(read_at, Some(size), Backup::Any).map(|found| found.table)
}

fn analyse_with(read_at: &mut ReadAt<'_>, size: Option<u64>, expected: Backup) -> Result<Analysis, Flaw> {
    let first = get(read_at, 0, 512, "the master boot record").map_err(|flaw| match flaw {
        Flaw::Cut(_) => Flaw::Missing("it is smaller than a sector".into()),
        other => other,
    })?;
    let mut found = if mbr::is_protective(&first) {
        from_gpt(read_at, size, expected)?
    } else {
        let mbr::MbrPartitions { partitions, complete, span, areas } = mbr::read(read_at, &first)?;
        overlaps(&partitions)?;
        let table = Table { kind: TableKind::Mbr, sector_size: 512, partitions, backup: None, areas };
        Analysis { table, span, labelled: complete, complete }
    };
    if let Some(size) = size {
        fits(&found.table, size)?;
        if found.span > size {
            let text = format!(
                "its extended partition ends at byte {}, and there are only {size} bytes",
                found.span
            );
            return Err(Flaw::Cut(text));
        }
    }
    for partition in &mut found.table.partitions {
        match read_content(read_at, partition) {
            Ok((file_system, label)) => (partition.file_system, partition.label) = (file_system, label),
            Err(Flaw::Pending) => {
                found.labelled = false;
                found.complete = false;
            }
            Err(flaw) => return Err(flaw),
        }
    }
    Ok(found)
}

fn from_gpt(read_at: &mut ReadAt<'_>, size: Option<u64>, expected: Backup) -> Result<Analysis, Flaw> {
    let primary = gpt::primary(read_at)?;
    if size.is_some_and(|size| primary.span > size) {
        return Err(Flaw::Cut(format!(
            "its backup GPT ends at byte {}, and there are only {} bytes",
            primary.span,
            size.unwrap_or_default()
        )));
    }
    overlaps(&primary.partitions)?;
    let backup = match gpt::backup(read_at, &primary) {
        Err(Flaw::Pending) => None,
        Err(Flaw::Invalid(why)) if expected == Backup::Any => {
            tracing::debug!("{why}");
            None
        }
        other => Some(other?),
    };
    let complete = backup.is_some();
    let backup = backup.unwrap_or_else(|| primary.assumed_backup());
    let areas = std::iter::once(mbr::TABLE).chain(primary.areas()).chain(Some(backup.clone())).collect();
    let table = Table {
        kind: TableKind::Gpt,
        sector_size: primary.sector_size(),
        backup: Some(backup),
        areas,
        partitions: primary.partitions,
    };
    Ok(Analysis { table, span: primary.span, labelled: true, complete })
}

fn fits(table: &Table, size: u64) -> Result<(), Flaw> {
    for p in &table.partitions {
        if p.start.saturating_add(p.size) > size {
            let end = p.start.saturating_add(p.size);
            return Err(Flaw::Cut(format!(
                "partition {} ends at byte {end}, and there are only {size} bytes",
                p.index
            )));
        }
    }
    Ok(())
}

fn overlaps(partitions: &[Partition]) -> Result<(), Flaw> {
    let mut sorted: Vec<&Partition> = partitions.iter().collect();
    sorted.sort_by_key(|p| p.start);
    for pair in sorted.windows(2) {
        if let [a, b] = pair
            && b.start < a.start.saturating_add(a.size)
        {
            return Err(Flaw::Invalid(format!("partitions {} and {} overlap", a.index, b.index)));
        }
    }
    Ok(())
}

fn read_content(
    read_at: &mut ReadAt<'_>,
    partition: &Partition,
) -> Result<(Option<&'static str>, Option<String>), Flaw> {
    let mut inside = inside(read_at, partition);
    let found = file_system(&mut inside).and_then(|found| Ok((found, label(&mut inside)?)));
    found.map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => Flaw::Pending,
        _ => Flaw::Read(e),
    })
}

/// Reads a partition as a disk of its own.
pub(crate) fn inside(
    read_at: &mut ReadAt<'_>,
    partition: &Partition,
) -> impl FnMut(u64, &mut [u8]) -> io::Result<()> {
    let (start, size) = (partition.start, partition.size);
    move |offset, buf| {
        if offset.saturating_add(buf.len() as u64) > size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read_at(start.saturating_add(offset), buf)
    }
}
