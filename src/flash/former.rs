//! What a target holds before it is erased, for people who have to decide that.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::disk::io::Io;
use crate::disk::partition::{Flaw, Table, file_system, label, of_disk};
use crate::disk::signature;
use crate::error::Error;
use crate::image::digest::{CHUNK, is_zero};
use crate::image::{BOOT_LABEL, row};
use crate::sys::buffer::Buffer;
use crate::sys::log::printable;

/// Found by signatures: nothing is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Content {
    pub table: Option<Table>,
    /// Of the whole target, where it has no table.
    pub file_system: Option<&'static str>,
    pub label: Option<String>,
    /// Signatures of volume managers at its end, as `blkid` names them, each once.
    pub signatures: Vec<&'static str>,
    /// Why there is no table, where there is one that is damaged, or the target cannot be read.
    pub flaw: Option<String>,
    /// Whether its first MiB is all zeroes.
    #[serde(skip)]
    begins_empty: bool,
}

impl Content {
    #[must_use]
    pub(super) fn of(disk: &Io<'_>) -> Content {
        let mut read_at = reader(disk);
        let total = disk.size().unwrap_or(0);
        let at_end = signature::at_end(&mut read_at, total);
        let mut signatures: Vec<&str> = at_end.iter().map(|s| s.name).collect();
        signatures.dedup();
        let mut head = vec![0; usize::try_from(total.min(CHUNK)).unwrap_or(0)];
        let begins_empty = read_at(0, &mut head).is_ok() && is_zero(&head);
        let mut content =
            Content { table: None, file_system: None, label: None, signatures, flaw: None, begins_empty };
        match of_disk(&mut read_at, total) {
            Ok(table) => content.table = Some(table),
            Err(Flaw::Missing(_)) => {
                content.file_system = file_system(&mut read_at).unwrap_or(None);
                content.label = label::label(&mut read_at).unwrap_or(None);
            }
            Err(flaw) => content.flaw = Some(flaw.to_string()),
        }
        content
    }

    /// Whether nothing is lost, as far as its beginning and its end show.
    #[must_use]
    pub(crate) fn is_blank(&self) -> bool {
        self.begins_empty && self.signatures.is_empty() && self.flaw.is_none()
    }

    /// Whether balenaOS, or its flasher, was written to it.
    fn is_of_balena(&self) -> bool {
        let labels = self.table.iter().flat_map(|t| &t.partitions).filter_map(|p| p.label.as_deref());
        labels.into_iter().any(|label| label == BOOT_LABEL || label.starts_with("flash-"))
    }
}

/// Reads what is on a disk. `UnexpectedEof`: the disk ends before.
pub(super) fn reader(disk: &Io<'_>) -> impl FnMut(u64, &mut [u8]) -> io::Result<()> {
    let mut buffer = Buffer::zeroed(0);
    let total = disk.size().unwrap_or(0);
    move |offset, out| {
        if offset.saturating_add(out.len() as u64) > total {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let bytes = disk
            .read_any(&mut buffer, offset, out.len() as u64)
            .map_err(|e: Error| io::Error::other(e.message()))?;
        if bytes.len() == out.len() {
            out.copy_from_slice(bytes);
        }
        Ok(())
    }
}

/// Lines below that of the target.
impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Content { table, file_system, label, signatures, flaw, .. } = self;
        let label =
            label.as_ref().map(|label| format!(", labelled {}", printable(label))).unwrap_or_default();
        match (table, file_system, flaw) {
            (Some(table), ..) => {
                let owner = if self.is_of_balena() { ", of balenaOS" } else { "" };
                writeln!(f, "        holds {}{owner}, which is lost:", table.kind)?;
                table.partitions.iter().try_for_each(|p| writeln!(f, "        {}", row(p)))
            }
            (None, _, Some(flaw)) => {
                writeln!(f, "        holds a partition table that cannot be read: {flaw}")
            }
            (None, Some(what), None) => {
                writeln!(f, "        holds {what} without a partition table{label}, which is lost")
            }
            (None, None, None) if signatures.is_empty() => {
                writeln!(f, "        holds no partition table, and nothing that is known")
            }
            (None, None, None) => writeln!(f, "        holds no partition table"),
        }?;
        if signatures.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "        has at its end the signature of {}, which is removed",
            signatures.join(" and of ")
        )
    }
}
