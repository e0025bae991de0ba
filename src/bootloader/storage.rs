//! What a loader is written to, for the sequence; and arithmetic with ranges of bytes.

use std::ops::Range;

use crate::error::Result;

/// Where a loader can be written: a disk, an eMMC boot partition, a flash chip.
///
/// Offsets are bytes of the whole device. [`Sequence`](super::sequence::Sequence) reads, writes and erases whole [units](Place::unit), save that it
/// writes multiples of the [grain](Place::grain) into a unit that was erased.
pub trait Storage {
    /// What errors call it.
    fn name(&self) -> String;

    /// Bytes that are rewritten as a whole: a logical sector, or an erase block.
    fn unit(&self) -> u64;

    /// Bytes of the body that are handled at once: a multiple of the unit.
    fn stride(&self) -> u64 {
        self.unit()
    }

    /// Bytes that can be written at once into an erased unit. `None`: units are written in place and never erased.
    fn grain(&self) -> Option<u64> {
        None
    }

    /// Whether writing a unit in place erases it, below what can be seen here.
    fn erases_by_itself(&self) -> bool {
        false
    }

    /// The byte that a place is filled with which holds nothing.
    fn blank(&self) -> u8;

    /// Fills `buf` from `offset`, past every cache.
    ///
    /// # Errors
    /// The device cannot be read.
    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// The device cannot be written.
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Erases the unit at `offset`. Called only where there is a grain.
    ///
    /// # Errors
    /// The device cannot be erased.
    fn erase(&mut self, offset: u64) -> Result<()>;

    /// Returns when everything written is on the medium, and the next reads come from there.
    ///
    /// # Errors
    /// The device did not confirm it.
    fn flush(&mut self) -> Result<()>;

    /// Lifts locks of the units in `range`, before the first of them is changed.
    ///
    /// # Errors
    /// They cannot be lifted; nothing was written.
    fn unlock(&mut self, _range: Range<u64>) -> Result<()> {
        Ok(())
    }

    /// Puts the locks back that [`Storage::unlock`] lifted.
    fn relock(&mut self) {}
}

/// Bytes of a range.
pub(super) fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// `at` down to a multiple of `unit`.
pub(super) fn floor(at: u64, unit: u64) -> u64 {
    at - at % unit
}

/// `range` out to whole grains.
pub(super) fn grains(range: &Range<u64>, grain: u64) -> Range<u64> {
    floor(range.start, grain)..range.end.next_multiple_of(grain)
}

/// What two ranges have in common; empty where that is nothing.
pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// The bytes `range` of a buffer that begins at `base`.
pub(super) fn slice<'b>(buf: &'b [u8], range: &Range<u64>, base: u64) -> &'b [u8] {
    index(range, base).and_then(|r| buf.get(r)).unwrap_or_default()
}

/// The same, to be changed.
pub(super) fn slice_mut<'b>(buf: &'b mut [u8], range: &Range<u64>, base: u64) -> &'b mut [u8] {
    index(range, base).and_then(|r| buf.get_mut(r)).unwrap_or_default()
}

fn index(range: &Range<u64>, base: u64) -> Option<Range<usize>> {
    let at = |n: u64| usize::try_from(n.checked_sub(base)?).ok();
    Some(at(range.start)?..at(range.end)?)
}
