//! Clears boot sector and partition tables, and reads back whether they are gone: there are cards that confirm every write and keep
//! nothing.

use std::ops::Range;

use super::Writer;
use crate::disk::io::Io;
use crate::disk::signature::Signature;
use crate::error::{Code, Error, Result};
use crate::flash::plan::{Plan, Step, stale_backup};
use crate::image::digest::{Digest256, is_zero};
use crate::sys::block::Medium;
use crate::sys::buffer::Buffer;

/// Digests of what the ranges that a plan clears hold; `None` where one cannot be read.
pub(super) struct Former(Vec<Option<Digest256>>);

impl Former {
    pub(super) fn read(plan: &Plan, io: &Io<'_>) -> Former {
        let digest = |range| content(io, range).ok().map(|bytes| Digest256::of(&bytes));
        Former(cleared_ranges(plan).map(digest).collect())
    }

    fn is_still_there(&self, plan: &Plan, io: &Io<'_>) -> bool {
        let Former(now) = Former::read(plan, io);
        now.iter().zip(&self.0).all(|(now, before)| now.is_some() && now == before)
    }
}

impl Writer<'_> {
    pub(super) fn clear(&self, range: &Range<u64>) -> Result<()> {
        match self.write_and_read_back(range.start, &zeroes(range)?) {
            Ok(None) => Ok(()),
            Ok(Some(at)) => Err(self.not_cleared(at)),
            Err(e) if is_dead_end(&self.io, range) => {
                tracing::warn!("{}; it cannot be read either", e.message());
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// One flush for all of them: a ZFS label has up to 128.
    pub(super) fn clear_signatures(&self, found: &[Signature]) -> Result<()> {
        for Signature { range, .. } in found {
            if let Err(e) = self.io.write_any(&zeroes(range)?, range.start) {
                tracing::debug!("{}; trying again", e.message());
            }
        }
        self.io.flush()?;
        let left = |range: &&Range<u64>| reads_as_zero(&self.io, range) != Some(true);
        found.iter().map(|signature| &signature.range).filter(left).try_for_each(|range| self.clear(range))
    }

    fn not_cleared(&self, at: u64) -> Error {
        let target = self.plan.target.name.display();
        let place = self.place(at);
        let message = format!("{target} does not keep what is written to it: it was not cleared at {place}");
        Error::new(Code::VerifyMismatch, message).object(target)
    }

    /// After a failure: whether nothing on the medium has changed.
    pub(super) fn is_as_before(&self) -> bool {
        self.former.as_ref().is_some_and(|former| former.is_still_there(self.plan, &self.io))
    }

    /// After a failure: clears table and boot sector unless they are gone. Returns whether they are.
    pub(super) fn disarm(&self) -> bool {
        // A card that has less space than it says may have got them again with the body. What cannot be read any more was read back
        // when it was cleared.
        let gone = |range| reads_as_zero(&self.io, range).unwrap_or(true) || is_dead_end(&self.io, range);
        if !self.armed && cleared_ranges(self.plan).all(gone) {
            return true;
        }
        clear_all(self.plan, &self.io) && cleared_ranges(self.plan).all(|range| is_gone(&self.io, range))
    }
}

/// Clears boot sector and partition table of a medium that `plan` was executed on. Returns whether all of it is gone, as read
/// back from the medium.
///
/// It also clears a backup table at the medium's end: a board's program may have moved it there, and firmware would restore
/// it.
#[must_use]
pub fn disarm(plan: &Plan, medium: &dyn Medium) -> bool {
    let io = Io::new(medium, &plan.target.name);
    let cleared = clear_all(plan, &io);
    let moved = match stale_backup(&io) {
        Ok(Some(range)) => is_cleared(&io, &range) && is_gone(&io, &range),
        Ok(None) => true,
        Err(e) => {
            tracing::warn!("cannot look for a backup partition table: {}", e.message());
            false
        }
    };
    cleared && moved && cleared_ranges(plan).all(|range| is_gone(&io, range))
}

fn cleared_ranges(plan: &Plan) -> impl Iterator<Item = &Range<u64>> {
    plan.steps.iter().flat_map(|step| match step {
        Step::Clear { range, .. } => vec![range],
        Step::ClearSignatures { found } => found.iter().map(|signature| &signature.range).collect(),
        _ => Vec::new(),
    })
}

/// Past the cache.
fn content(io: &Io<'_>, range: &Range<u64>) -> Result<Vec<u8>> {
    io.drop_cache()?;
    let mut buffer = Buffer::zeroed(0);
    Ok(io.read_any(&mut buffer, range.start, range.end - range.start)?.to_vec())
}

/// `None` where it cannot be read.
fn reads_as_zero(io: &Io<'_>, range: &Range<u64>) -> Option<bool> {
    let content = content(io, range);
    let content =
        content.inspect_err(|e| tracing::warn!("cannot read back what was cleared: {}", e.message()));
    content.ok().map(|bytes| is_zero(&bytes))
}

fn is_gone(io: &Io<'_>, range: &Range<u64>) -> bool {
    reads_as_zero(io, range) == Some(true) || is_dead_end(io, range)
}

fn clear_all(plan: &Plan, io: &Io<'_>) -> bool {
    // Not `all`: every range is tried.
    cleared_ranges(plan).filter(|range| !is_cleared(io, range)).count() == 0
}

fn is_cleared(io: &Io<'_>, range: &Range<u64>) -> bool {
    clear(io, range).is_ok() || clear_around_bad_blocks(io, range) || is_dead_end(io, range)
}

/// Whether `range` is the end of the disk and its last block cannot be read. The header of a backup table would be there,
/// and firmware finds none. Some bridges report one sector too many.
fn is_dead_end(io: &Io<'_>, range: &Range<u64>) -> bool {
    let last = range.end.saturating_sub(io.block() as u64);
    let mut buffer = Buffer::zeroed(0);
    range.start > 0
        && io.size().is_ok_and(|size| size == range.end)
        && io.read_any(&mut buffer, last, range.end - last).is_err_and(|e| e.code() == Code::TargetReadFailed)
}

fn clear(io: &Io<'_>, range: &Range<u64>) -> Result<()> {
    io.write_any(&zeroes(range)?, range.start)?;
    io.flush()
}

/// They are written, not discarded: what they replace must be gone before anything else happens.
fn zeroes(range: &Range<u64>) -> Result<Vec<u8>> {
    let len =
        range.end.checked_sub(range.start).ok_or_else(|| Error::internal("a range ends before it begins"))?;
    Ok(vec![0; usize::try_from(len).map_err(Error::internal)?])
}

/// Clears as much of `range` as possible, block by block, so that one bad sector does not keep a partition table. Returns
/// whether all of it is gone. Gives up on a device that refuses block after block.
fn clear_around_bad_blocks(io: &Io<'_>, range: &Range<u64>) -> bool {
    const HOPELESS: u32 = 16;
    let step = io.block() as u64;
    let step = if step == 1 { 4096 } else { step };
    let (mut bad, mut in_a_row) = (0u32, 0);
    let mut at = range.start;
    while at < range.end && in_a_row < HOPELESS {
        let end = range.end.min((at / step + 1) * step);
        match zeroes(&(at..end)).and_then(|zeroes| io.write_any(&zeroes, at)) {
            Ok(()) => in_a_row = 0,
            Err(e) if e.code() == Code::TargetVanished => return false,
            Err(_) => {
                bad += 1;
                in_a_row += 1;
            }
        }
        at = end;
    }
    io.flush().is_ok() && bad == 0
}
