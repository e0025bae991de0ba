//! The plan: every future write, as a value. `--plan` prints it, and the run executes it.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::former::{Content, reader};
use crate::disk::io::Io;
use crate::disk::partition::Table;
use crate::disk::select::ImageSize;
use crate::disk::select::{Target, TargetKind};
use crate::disk::signature::{self, Signature};
use crate::error::{Code, Error, Result};
use crate::image::digest::{CHUNK, Digest256};
use crate::image::{Format, Inspection, Signed, StoredImage};
use crate::sys::block::Medium;
use crate::sys::buffer::{Buffer, part};
use crate::sys::log::{printable, shown};

const PLAN_VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleared {
    /// Boot code, partition table, bootloaders in the gap: the disk must not boot until it is complete.
    FirstMebibyte,
    /// An old backup GPT at the end of the disk, from which firmware would restore the old table.
    StaleBackupGpt,
    /// The place of the image's own backup GPT, which is written last.
    ImageBackupGpt,
}

/// Each step is flushed to the medium before the next begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    Clear {
        what: Cleared,
        range: Range<u64>,
    },
    /// Zeroes sectors past the image, at the end of the disk, that hold signatures of volume managers. The new system might otherwise add the disk to
    /// a pool or an array.
    ClearSignatures {
        found: Vec<Signature>,
    },
    /// Writes the image without its first MiB and its backup GPT.
    WriteBody {
        start: u64,
        /// `None`: known only after the image has been decoded.
        end: Option<u64>,
        except: Option<Range<u64>>,
    },
    /// Reads the body back from the medium and compares it with the image's digests.
    VerifyBody,
    /// Analyses the table again, from the bytes that will be written. Needed where no digest of the image was known before the write: the image is
    /// read a second time, and its medium may give other bytes, or only its beginning was read.
    CheckTable,
    /// Writes the image's backup GPT and reads it back.
    WriteBackupGpt {
        range: Range<u64>,
    },
    /// Writes the image's first MiB, its first sectors last of all, and reads it back.
    WriteHead {
        range: Range<u64>,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedImage {
    #[serde(flatten)]
    pub stored: StoredImage,
    pub size: ImageSize,
    /// `None` where the caller forced raw data.
    pub table: Option<Table>,
    #[serde(skip)]
    pub chunks: Option<Vec<Digest256>>,
    /// How many of its bytes are zeroes: an estimate, for the time left.
    #[serde(skip)]
    pub zeroes: u64,
    /// Present if it was read completely.
    pub chunk_digest: Option<Digest256>,
    pub sha256: Option<Digest256>,
    /// Where a signature was required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed: Option<Signed>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub version: u32,
    pub image: PlannedImage,
    pub target: Target,
    /// What is lost; `None` where a plain file will be created.
    pub holds: Option<Content>,
    pub steps: Vec<Step>,
}

impl Plan {
    /// `old` is the target as it is now; `None` where a plain file will be created.
    pub fn new(
        stored: StoredImage,
        inspection: Inspection,
        target: Target,
        old: Option<&dyn Medium>,
    ) -> Result<Plan> {
        let end = match inspection.size {
            ImageSize::Exact(n) => Some(n),
            ImageSize::AtLeast(_) => None,
        };
        let head = 0..end.unwrap_or(CHUNK).min(CHUNK);
        let backup = inspection.table.as_ref().and_then(|t| t.backup.clone());
        let backup = backup.map(|b| b.start.max(head.end)..b.end).filter(|b| !b.is_empty());

        let mut steps = Vec::new();
        let mut clear = |what, range| steps.push(Step::Clear { what, range });
        clear(Cleared::FirstMebibyte, head.clone());
        if let Some(stale) = old.map(|disk| stale_backup(&Io::new(disk, &target.name))).transpose()?.flatten()
        {
            // On a disk of little more than a MiB it can begin before the end of the head.
            clear(Cleared::StaleBackupGpt, stale.start.max(head.end).min(stale.end)..stale.end);
        }
        if let Some(range) = &backup {
            clear(Cleared::ImageBackupGpt, range.clone());
        }
        let least = match inspection.size {
            ImageSize::Exact(n) | ImageSize::AtLeast(n) => n,
        };
        let signatures = old.map(|disk| {
            let disk = Io::new(disk, &target.name);
            signature::at_end(&mut reader(&disk), disk.size().unwrap_or(0))
        });
        let signatures = signatures.unwrap_or_default();
        let after: Vec<Signature> = signatures.iter().filter(|s| s.range.start >= least).cloned().collect();
        if !after.is_empty() {
            steps.push(Step::ClearSignatures { found: after });
        }
        steps.push(Step::WriteBody { start: head.end, end, except: backup.clone() });
        steps.push(Step::VerifyBody);
        if inspection.table.is_some() && inspection.digests.is_none() {
            steps.push(Step::CheckTable);
        }
        if let Some(range) = backup {
            steps.push(Step::WriteBackupGpt { range });
        }
        steps.push(Step::WriteHead { range: head });

        let image = PlannedImage {
            stored,
            size: inspection.size,
            table: inspection.table,
            chunk_digest: inspection.digests.as_deref().map(crate::image::digest::root),
            chunks: inspection.digests,
            zeroes: 0,
            sha256: inspection.sha256,
            signed: inspection.signed,
        };
        let holds = old.map(|disk| Content::of(&Io::new(disk, &target.name)));
        Ok(Plan { version: PLAN_VERSION, image, target, holds, steps })
    }

    /// The part of the image with its backup GPT, if that is written separately.
    #[must_use]
    pub fn backup(&self) -> Option<Range<u64>> {
        self.steps.iter().find_map(|s| match s {
            Step::WriteBackupGpt { range } => Some(range.clone()),
            _ => None,
        })
    }

    #[must_use]
    pub fn head(&self) -> Range<u64> {
        let head = self.steps.iter().find_map(|s| match s {
            Step::WriteHead { range } => Some(range.clone()),
            _ => None,
        });
        head.unwrap_or(0..0)
    }
}

/// Limit of a plausible backup entry array: 4096 entries of 128 bytes. Usual is 16 KiB.
const MAX_ENTRIES: u64 = 512 << 10;

/// The backup GPT at the end of a disk: its header in the last whole sector, and the entry array that it points to. A plain file may
/// have a part of a sector after that, which a loop device does not show.
///
/// Tries both sector sizes: an adapter that showed the other size may have been used to partition the disk.
pub(super) fn stale_backup(disk: &Io<'_>) -> Result<Option<Range<u64>>> {
    let size = disk.size()?;
    let mut buffer = Buffer::zeroed(0);
    for sector in [512u64, 4096] {
        let end = size - size % sector;
        let Some(at) = end.checked_sub(sector) else { continue };
        let header = match disk.read_any(&mut buffer, at, 92) {
            Ok(header) => header,
            // An unreadable sector may hold a table; a write repairs a weak sector.
            Err(e) if e.code() == Code::TargetReadFailed => {
                tracing::warn!("{}; it will be cleared", e.message());
                return Ok(Some(at - at % disk.block() as u64..size));
            }
            Err(e) => return Err(e),
        };
        let Some(b"EFI PART") = header.get(..8) else { continue };
        // UEFI specification, table "GPT Header": entries' LBA at 72, their number at 80, their size at 84.
        let field = |from: usize, len: usize| -> Result<u64> {
            let bytes = part(header, from..from + len).map_err(Error::internal)?;
            Ok(bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)))
        };
        let entries = field(72, 8)?.saturating_mul(sector);
        let length = field(80, 4)?.saturating_mul(field(84, 4)?);
        // A header with invalid fields is still a header: then only the header is cleared.
        let believable = entries < at && length <= MAX_ENTRIES && at - entries <= MAX_ENTRIES + sector;
        return Ok(Some(if believable { entries } else { at }..end));
    }
    Ok(None)
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / CHUNK as f64)
}

/// The lines of a target, and of what it holds now.
pub(crate) struct TargetLines<'a>(pub &'a Target, pub Option<&'a Content>);

impl fmt::Display for TargetLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TargetLines(target, holds) = self;
        write!(f, "target  {}", shown(&target.name))?;
        if target.node != target.name {
            write!(f, " -> {}", shown(&target.node))?;
        }
        for part in [&target.model, &target.serial].into_iter().flatten() {
            write!(f, " {}", printable(part))?;
        }
        match target.kind {
            TargetKind::Block => {
                writeln!(f, ", disk of {}, {}-byte blocks", mib(target.size), target.block_size)?;
            }
            TargetKind::File => writeln!(f, ", plain file")?,
        }
        holds.map_or(Ok(()), |holds| write!(f, "{holds}"))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.image.size {
            ImageSize::Exact(n) => mib(n),
            ImageSize::AtLeast(n) => format!("at least {}", mib(n)),
        };
        let stored = mib(self.image.stored.stored_size);
        writeln!(f, "image   {}", shown(&self.image.stored.path))?;
        match self.image.stored.format {
            Format::Raw => writeln!(f, "        {size}, not compressed")?,
            format => writeln!(f, "        {size}, stored as {stored} of {format}")?,
        }
        if let Some(t) = &self.image.table {
            writeln!(f, "        {}, {}-byte sectors", t.kind, t.sector_size)?;
            for p in &t.partitions {
                let label = p.label.as_deref().or(p.name.as_deref()).unwrap_or("-");
                let label = printable(label);
                writeln!(f, "        {:>3}  {label:<16} {:>12} at {}", p.index, mib(p.size), p.start)?;
            }
        }
        if let Some(Signed { certificate, key }) = &self.image.signed {
            writeln!(f, "        signed by {}, key {key}", shown(certificate))?;
        }
        write!(f, "{}", TargetLines(&self.target, self.holds.as_ref()))?;
        for (i, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:>6}. {step}", i + 1)?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Clear { what, range } => {
                let what = match what {
                    Cleared::FirstMebibyte => "boot sector, partition table and gap",
                    Cleared::StaleBackupGpt => "old backup GPT at the end of the disk",
                    Cleared::ImageBackupGpt => "place of the image's backup GPT",
                };
                write!(f, "clear bytes {}..{}: {what}", range.start, range.end)
            }
            Step::ClearSignatures { found } => {
                let mut names: Vec<&str> = found.iter().map(|s| s.name).collect();
                names.dedup();
                write!(f, "clear {} sectors at the end of the disk: {}", found.len(), names.join(", "))
            }
            Step::WriteBody { start, end, except } => {
                write!(f, "write bytes {start}..")?;
                match end {
                    Some(end) => write!(f, "{end}")?,
                    None => write!(f, "(end of image)")?,
                }
                match except {
                    Some(x) => write!(f, " except {}..{}", x.start, x.end),
                    None => Ok(()),
                }
            }
            Step::VerifyBody => write!(f, "read all of it back from the medium and compare"),
            Step::CheckTable => write!(f, "check the partition table again, as it will be written"),
            Step::WriteBackupGpt { range } => {
                write!(f, "write bytes {}..{} (backup GPT), read back", range.start, range.end)
            }
            Step::WriteHead { range } => {
                write!(f, "write bytes {}..{} (first sectors last), read back", range.start, range.end)
            }
        }
    }
}
