//! The writer: executes a [`Plan`] on a [`Medium`].
//!
//! After success, the first image-size bytes of the medium equal the image, whatever was there before. After a failure, the
//! error names operation, offset and cause, and the disk has no partition table, as read back; where that could not be achieved (a
//! disk that keeps no more writes), the error says so. Power may fail at any time: boot sector and table are cleared first and
//! written last, each step is flushed before the next begins, and nothing becomes bootable before it was read back.

mod body;
mod clear;
mod verify;
mod zero;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::plan::{Plan, PlannedImage, Step};
use crate::disk::io::Io;
use crate::disk::partition::analyse;
use crate::disk::select::ImageSize;
use crate::error::{Code, Error, Result};
use crate::image::chunks::Source;
use crate::image::digest::{CHUNK, Digest256, chunk_digest, root};
use crate::image::{self, Format};
use crate::progress::{Progress, Stage, Work};
use crate::sys::block::Medium;
use crate::sys::buffer::{Buffer, part_mut};
use clear::Former;
pub use clear::disarm;
pub(super) use verify::place;
use zero::Zeroer;

/// Opens the image from its start; called again to rewrite a chunk.
pub type Open<'a> = &'a (dyn Fn() -> Result<Box<dyn Source>> + Sync);

#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub size: u64,
    /// SHA-256 over the list of chunk digests.
    pub chunk_digest: Digest256,
    pub written: u64,
    /// By the medium itself, or by writing zeroes.
    pub zeroed: u64,
    /// Not written, because the medium already had them.
    pub skipped: u64,
    pub verified: u64,
    /// Chunks that were written a second time.
    pub rewritten_chunks: u64,
    pub io_retries: u64,
    /// The page cache was bypassed for the whole flash.
    pub direct_io: bool,
    pub write_time: Duration,
    pub verify_time: Duration,
}

/// Executes `plan`. No other program may have the medium open.
pub fn execute(plan: &Plan, open: Open<'_>, medium: &dyn Medium, progress: &dyn Progress) -> Result<Outcome> {
    let mut writer = Writer::new(plan, open, medium, progress);
    if let ImageSize::Exact(n) = plan.image.size {
        writer.io.extend(n)?;
    }
    writer.run().map_err(|e| {
        let interrupted = e.code() == Code::Interrupted;
        if writer.is_as_before() {
            return if interrupted { e } else { e.and_also("it reads as before: nothing on it was changed") };
        }
        let cleared = writer.disarm();
        let e = e.after_write();
        match (cleared, interrupted) {
            (true, false) => e,
            (true, true) => does_not_boot("it", e),
            (false, _) => e.and_also("a boot sector or partition table may be left on it"),
        }
    })
}

/// The state of a disk whose flash a signal ended, once its boot data is cleared.
pub(crate) fn does_not_boot(disk: impl fmt::Display, e: Error) -> Error {
    e.and_also(&format!("{disk} has no partition table and does not boot")).with_hint("flash it again")
}

struct Writer<'a> {
    plan: &'a Plan,
    open: Open<'a>,
    io: Io<'a>,
    progress: &'a dyn Progress,
    head: Range<u64>,
    backup: Option<Range<u64>>,
    size: u64,
    chunks: Vec<Digest256>,
    /// Content of the chunks that contain the first MiB or the backup GPT, by offset.
    edges: BTreeMap<u64, Vec<u8>>,
    /// A boot sector or partition table may be on the medium: the old one until it is cleared, the new one once it is written.
    armed: bool,
    /// The former content of the cleared ranges, until anything else is written.
    former: Option<Former>,
    zeroer: Zeroer,
    written: AtomicU64,
    skipped: AtomicU64,
    verified: AtomicU64,
    rewritten: AtomicU64,
}

impl<'a> Writer<'a> {
    fn new(plan: &'a Plan, open: Open<'a>, medium: &'a dyn Medium, progress: &'a dyn Progress) -> Self {
        Writer {
            plan,
            open,
            io: Io::new(medium, &plan.target.name),
            progress,
            head: plan.head(),
            backup: plan.backup(),
            size: 0,
            chunks: plan.image.chunks.clone().unwrap_or_default(),
            edges: BTreeMap::new(),
            armed: true,
            former: None,
            zeroer: Zeroer::default(),
            written: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            rewritten: AtomicU64::new(0),
        }
    }

    fn run(&mut self) -> Result<Outcome> {
        let direct_at_first = self.io.medium().is_direct();
        self.former = Some(Former::read(self.plan, &self.io));
        let began = Instant::now();
        let mut written_by = began;
        for step in &self.plan.steps {
            // The last writes take less time than to undo them.
            if !matches!(step, Step::WriteBackupGpt { .. } | Step::WriteHead { .. }) {
                heed_signals(&self.io)?;
            }
            match step {
                Step::Clear { range, .. } => self.clear(range)?,
                Step::ClearSignatures { found } => self.clear_signatures(found)?,
                Step::WriteBody { end, .. } => {
                    self.armed = false;
                    self.former = None;
                    let work = |stage, zeroes| Work { stage, total: *end, zeroes };
                    self.progress.plan(&[work(Stage::Write, self.plan.image.zeroes), work(Stage::Verify, 0)]);
                    self.progress.begin(Stage::Write, *end);
                    self.write_body()?;
                    self.progress.finish();
                    written_by = Instant::now();
                    self.progress.begin(Stage::Verify, Some(self.size));
                }
                Step::VerifyBody => self.verify_body()?,
                Step::CheckTable => self.check_table()?,
                Step::WriteBackupGpt { range } => self.write_edge(range)?,
                Step::WriteHead { range } => self.write_head(range)?,
            }
        }
        self.progress.finish();
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Ok(Outcome {
            size: self.size,
            chunk_digest: root(&self.chunks),
            written: load(&self.written),
            zeroed: load(&self.zeroer.zeroed),
            skipped: load(&self.skipped) + load(&self.zeroer.skipped),
            verified: load(&self.verified),
            rewritten_chunks: load(&self.rewritten),
            io_retries: self.io.retries(),
            direct_io: direct_at_first && self.io.medium().is_direct(),
            write_time: written_by - began,
            verify_time: written_by.elapsed(),
        })
    }

    /// Writes the first MiB from its end: each part after the part that follows it was read back. What firmware starts by comes last of
    /// all, when the rest of the head has damaged nothing at the image's end.
    fn write_head(&mut self, range: &Range<u64>) -> Result<()> {
        // MBR and, for 512-byte sectors, the GPT header; for 4096-byte sectors both take 8 KiB.
        let first = (2 * self.io.block() as u64).max(4096).min(range.end);
        // An MBR has no checksum over what follows it, and only a single sector is written as a whole.
        let sector = (self.io.block() as u64).max(512).min(first);
        self.write_edge(&(first..range.end))?;
        self.refuse_folded_card(first)?;
        self.write_edge(&(sector..first))?;
        self.write_edge(&(0..sector))?;
        // These may also be the last sectors of the image.
        self.read_tail_again()
    }

    fn write_edge(&mut self, range: &Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.armed = true;
        let bytes = self.edge_bytes(range)?;
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if let Some(bad) = self.write_and_read_back(range.start, &bytes)? {
            return Err(self.mismatch(bad));
        }
        self.verified.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.progress.advance(bytes.len() as u64);
        Ok(())
    }

    /// Returns the first byte that is wrong after a second write.
    fn write_and_read_back(&self, offset: u64, bytes: &[u8]) -> Result<Option<u64>> {
        self.io.write_any(bytes, offset)?;
        self.io.flush()?;
        let Some(bad) = self.first_difference(offset, bytes)? else { return Ok(None) };
        self.warn_mismatch(bad);
        self.rewritten.fetch_add(1, Ordering::Relaxed);
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.io.write_any(bytes, offset)?;
        self.io.flush()?;
        self.first_difference(offset, bytes)
    }

    fn edge_bytes(&self, range: &Range<u64>) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (&start, bytes) in &self.edges {
            let from =
                usize::try_from(range.start.saturating_sub(start)).unwrap_or(usize::MAX).min(bytes.len());
            let to = usize::try_from(range.end.saturating_sub(start)).unwrap_or(usize::MAX).min(bytes.len());
            out.extend_from_slice(bytes.get(from..to).unwrap_or_default());
        }
        if out.len() as u64 == range.end - range.start {
            Ok(out)
        } else {
            Err(self.image_changed("it ended before its partition table said"))
        }
    }

    /// Refuses the partition table that is about to be written if it differs from the checked table.
    fn check_table(&self) -> Result<()> {
        let PlannedImage { table: Some(checked), stored, .. } = &self.plan.image else { return Ok(()) };
        let mut buffer = Buffer::zeroed(0);
        let mut unreadable = None;
        let mut read_at = |offset: u64, out: &mut [u8]| {
            let end = offset.saturating_add(out.len() as u64);
            if end > self.size {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let body = self.io.read_any(&mut buffer, offset, end - offset).map_err(|e| {
                let shown = io::Error::other(e.message());
                unreadable = Some(e);
                shown
            })?;
            fill(out, body)?;
            // The edges are still in memory only.
            for edge in std::iter::once(&self.head).chain(&self.backup) {
                let held = edge.start.max(offset)..edge.end.min(end);
                if !held.is_empty() {
                    let bytes = self.edge_bytes(&held).map_err(io::Error::other)?;
                    let at = usize::try_from(held.start - offset).map_err(io::Error::other)?;
                    fill(part_mut(out, at..at.saturating_add(bytes.len()))?, &bytes)?;
                }
            }
            Ok(())
        };
        let found = analyse(&mut read_at, Some(self.size));
        if let Some(e) = unreadable {
            return Err(e);
        }
        match found {
            Ok(found) if found.table.is_still(checked) => Ok(()),
            Ok(_) => Err(self.image_changed("its partition table differs from the checked table")),
            Err(flaw) if stored.format == Format::Raw => {
                Err(self.image_changed(&format!("its partition table became invalid: {flaw}")))
            }
            Err(flaw) => Err(image::flawed(flaw, &stored.path)),
        }
    }

    fn is_edge(&self, chunk: u64) -> bool {
        let touches = |r: &Range<u64>| r.start < chunk + CHUNK && chunk < r.end;
        touches(&self.head) || self.backup.as_ref().is_some_and(touches)
    }

    fn edge_ranges(&self, chunk: u64, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let at = move |n: u64| usize::try_from(n.saturating_sub(chunk)).unwrap_or(usize::MAX).min(len);
        let ranges = [Some(self.head.clone()), self.backup.clone()];
        ranges.into_iter().flatten().map(move |r| at(r.start)..at(r.end)).filter(|r| !r.is_empty())
    }

    fn masked(&self, chunk: u64, bytes: &[u8]) -> Vec<u8> {
        let mut masked = bytes.to_vec();
        for range in self.edge_ranges(chunk, bytes.len()) {
            if let Some(part) = masked.get_mut(range) {
                part.fill(0);
            }
        }
        masked
    }

    /// The digest that a chunk of the body must now have on the medium.
    fn expected(&self, chunk: u64) -> Option<Digest256> {
        match self.edges.get(&chunk) {
            Some(bytes) => Some(chunk_digest(&self.masked(chunk, bytes))),
            None => usize::try_from(chunk / CHUNK).ok().and_then(|i| self.chunks.get(i).copied()),
        }
    }

    fn image_changed(&self, how: &str) -> Error {
        let path = self.plan.image.stored.path.display();
        Error::new(Code::ImageChanged, format!("the image {path} changed while it was being written: {how}"))
            .object(path)
    }
}

/// Between two pieces of work that a signal need not wait for.
fn heed_signals(io: &Io<'_>) -> Result<()> {
    let target = io.name().display();
    image::heed(format_args!("while {target} was being written")).map_err(|e| e.object(target))
}

/// Fails unless both have the same length.
fn fill(out: &mut [u8], bytes: &[u8]) -> io::Result<()> {
    if out.len() != bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    out.copy_from_slice(bytes);
    Ok(())
}

fn locked<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
