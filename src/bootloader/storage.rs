use std::ops::Range;

use crate::error::{Error, Result};
use crate::sys::buffer::{part, part_mut};

/// A disk, an eMMC boot partition, or a flash chip.
///
/// Offsets are bytes of the whole device. [`Sequence`](super::sequence::Sequence) reads, writes and erases whole
/// [units](Storage::unit); into an erased unit it writes multiples of the [grain](Storage::grain).
pub trait Storage {
    fn name(&self) -> String;

    /// Bytes that are rewritten as a whole: a logical sector, or an erase block.
    fn unit(&self) -> u64;

    /// Bytes of the body in one step: a multiple of the unit.
    fn stride(&self) -> u64 {
        self.unit()
    }

    /// Bytes that can be written at once into an erased unit. `None`: units are written in place and never erased.
    fn grain(&self) -> Option<u64> {
        None
    }

    /// Whether an in-place write of a unit erases it, at a lower level.
    fn erases_by_itself(&self) -> bool {
        false
    }

    /// The byte that fills an empty place.
    fn blank(&self) -> u8;

    /// Past every cache.
    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<()>;

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Called only where there is a grain.
    fn erase(&mut self, offset: u64) -> Result<()>;

    /// Returns when all writes are on the medium; the next reads come from there.
    fn flush(&mut self) -> Result<()>;

    /// Unlocks the units in `range`, before the first of them is changed.
    fn unlock(&mut self, _range: Range<u64>) -> Result<()> {
        Ok(())
    }

    /// Restores the locks that [`Storage::unlock`] lifted.
    fn relock(&mut self) {}
}

pub(super) fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

/// Rounds `at` down to a multiple of `unit`.
pub(super) fn floor(at: u64, unit: u64) -> u64 {
    at - at % unit
}

pub(super) fn grains(range: &Range<u64>, grain: u64) -> Range<u64> {
    floor(range.start, grain)..range.end.next_multiple_of(grain)
}

pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

/// The bytes at `range` of the device, in a buffer that begins at `base`.
pub(super) fn slice<'b>(buf: &'b [u8], range: &Range<u64>, base: u64) -> Result<&'b [u8]> {
    part(buf, index(range, base)).map_err(Error::internal)
}

pub(super) fn slice_mut<'b>(buf: &'b mut [u8], range: &Range<u64>, base: u64) -> Result<&'b mut [u8]> {
    part_mut(buf, index(range, base)).map_err(Error::internal)
}

/// Outside every buffer if it begins before `base`.
fn index(range: &Range<u64>, base: u64) -> Range<usize> {
    let at = |n: u64| n.checked_sub(base).and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    at(range.start)..at(range.end)
}
