//! What the partition table and the file systems' headers say. Pure functions over a `read_at`.
//!
//! The crates for partition tables are not used here: they look for the backup GPT at the end of the device instead of
//! where the primary says, fall back to it silently, size buffers by what the header claims, and turn a "not yet" of a
//! stream into a damaged table. For images every one of those matters.

use std::io;
use std::path::Path;

use super::label::{ReadAt, label};
use super::{Partition, Table, TableKind, gpt, mbr};
use crate::error::{Code, Error};

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Flaw {
    /// Bytes are needed that the stream has not delivered yet (`WouldBlock` from `read_at`).
    Pending,
    /// Reading failed.
    Read(io::Error),
    /// There is no partition table.
    Missing(String),
    /// There is one, and it is wrong.
    Invalid(String),
    /// The table speaks of more than the image has.
    Cut(String),
}

impl Flaw {
    /// The error for the owner of the image at `path`.
    pub(super) fn into_error(self, path: &Path) -> Error {
        let path = path.display();
        let (code, text) = match self {
            Flaw::Pending => (
                Code::PartitionTableInvalid,
                format!("the headers of image {path} are strewn so that a few passes do not find them"),
            ),
            Flaw::Read(e) => {
                return Error::new(Code::Io, format!("cannot read image {path}")).object(path).because(e);
            }
            Flaw::Missing(why) => {
                (Code::NoPartitionTable, format!("image {path} has no partition table: {why}"))
            }
            Flaw::Invalid(why) => (
                Code::PartitionTableInvalid,
                format!("the partition table of image {path} is not valid: {why}"),
            ),
            Flaw::Cut(why) => (Code::ImageDamaged, format!("image {path} is truncated: {why}")),
        };
        Error::new(code, text).object(path)
    }
}

/// Reads `len` bytes of `what`.
pub(super) fn get(read_at: &mut ReadAt<'_>, offset: u64, len: usize, what: &str) -> Result<Vec<u8>, Flaw> {
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

/// What is known of an image.
pub(super) struct Analysis {
    pub(super) table: Table,
    /// Bytes that the table spans at least.
    pub(super) span: u64,
    /// All partitions and their labels are known.
    pub(super) labelled: bool,
    /// Nothing is missing.
    pub(super) complete: bool,
}

/// Reads table and labels as far as `read_at` has the bytes. `size`: the image's, once it is known.
pub(super) fn analyse(read_at: &mut ReadAt<'_>, size: Option<u64>) -> Result<Analysis, Flaw> {
    let first = get(read_at, 0, 512, "the master boot record").map_err(|flaw| match flaw {
        Flaw::Cut(_) => Flaw::Missing("it is smaller than a sector".into()),
        other => other,
    })?;
    let mut found = if mbr::is_protective(&first) {
        from_gpt(read_at, size)?
    } else {
        let mbr::Found { partitions, complete, span } = mbr::read(read_at, &first)?;
        overlaps(&partitions)?;
        let table = Table { kind: TableKind::Mbr, sector_size: 512, partitions, backup: None };
        Analysis { table, span, labelled: complete, complete }
    };
    if let Some(size) = size {
        fits(&found.table, size)?;
        if found.span > size {
            let text = format!("its extended partition ends at byte {}, the image at {size}", found.span);
            return Err(Flaw::Cut(text));
        }
    }
    for partition in &mut found.table.partitions {
        match read_label(read_at, partition) {
            Ok(label) => partition.label = label,
            Err(Flaw::Pending) => {
                found.labelled = false;
                found.complete = false;
            }
            Err(flaw) => return Err(flaw),
        }
    }
    Ok(found)
}

fn from_gpt(read_at: &mut ReadAt<'_>, size: Option<u64>) -> Result<Analysis, Flaw> {
    let primary = gpt::primary(read_at)?;
    if size.is_some_and(|size| primary.span > size) {
        return Err(Flaw::Cut(format!(
            "its backup GPT ends at byte {}, the image at {}",
            primary.span,
            size.unwrap_or_default()
        )));
    }
    overlaps(&primary.partitions)?;
    let backup = match gpt::backup(read_at, &primary) {
        Err(Flaw::Pending) => None,
        other => Some(other?),
    };
    let complete = backup.is_some();
    let table = Table {
        kind: TableKind::Gpt,
        sector_size: primary.sector_size(),
        backup: Some(backup.unwrap_or_else(|| primary.assumed_backup())),
        partitions: primary.partitions,
    };
    Ok(Analysis { table, span: primary.span, labelled: true, complete })
}

fn fits(table: &Table, size: u64) -> Result<(), Flaw> {
    for p in &table.partitions {
        if p.start.saturating_add(p.size) > size {
            let end = p.start.saturating_add(p.size);
            return Err(Flaw::Cut(format!("partition {} ends at byte {end}, the image at {size}", p.index)));
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

fn read_label(read_at: &mut ReadAt<'_>, partition: &Partition) -> Result<Option<String>, Flaw> {
    let (start, size) = (partition.start, partition.size);
    let mut inside = |offset: u64, buf: &mut [u8]| {
        if offset.saturating_add(buf.len() as u64) > size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read_at(start.saturating_add(offset), buf)
    };
    label(&mut inside).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => Flaw::Pending,
        _ => Flaw::Read(e),
    })
}
