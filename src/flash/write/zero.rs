use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::heed_signals;
use crate::disk::io::Io;
use crate::error::{Code, Error, Result};
use crate::image::digest::{CHUNK, CHUNK_LEN, is_zero};
use crate::sys::buffer::{ALIGN, Buffer, part};

/// Bytes of one request: progress stays visible, and a slow device is not silent for minutes.
const ZERO_STEP: u64 = 256 << 20;

/// About 4 MiB of memory.
const MAX_RANGES: usize = 1 << 16;

/// Ranges to zero after the write. Adjacent ones are joined, so that a device gets few large requests.
#[derive(Debug, Default)]
pub(super) struct ZeroMap {
    ranges: Mutex<BTreeMap<u64, u64>>,
    /// Whether [`ZeroMap::take_trial`] has given its range.
    has_given: AtomicBool,
}

/// Enough zeroes to learn what they cost: as much as a boot partition has free, which comes early in an image.
const TRIAL: u64 = 8 << 20;

impl ZeroMap {
    /// Adds a range that overlaps no other one. `false`: there are too many; write the zeroes instead.
    pub(super) fn add(&self, range: Range<u64>) -> bool {
        let mut map = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let Range { mut start, mut end } = range;
        if let Some((&s, &e)) = map.range(..start).next_back().filter(|(_, e)| **e == start) {
            map.remove(&s);
            debug_assert_eq!(e, start);
            start = s;
        }
        if let Some(e) = map.remove(&end) {
            end = e;
        }
        if map.len() >= MAX_RANGES {
            return false;
        }
        map.insert(start, end);
        true
    }

    /// Once, a part of the range that `added` belongs to, if that is large enough and ends before `end`: these zeroes are not left for later.
    pub(super) fn take_trial(&self, added: &Range<u64>, end: u64) -> Option<Range<u64>> {
        if self.has_given.load(Ordering::Relaxed) {
            return None;
        }
        let mut map = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let (&start, &stop) = map.range(..=added.start).next_back().filter(|(s, e)| **e - **s >= TRIAL)?;
        let trial = start..start + TRIAL;
        if trial.end > end || self.has_given.swap(true, Ordering::Relaxed) {
            return None;
        }
        map.remove(&start);
        if trial.end < stop {
            map.insert(trial.end, stop);
        }
        Some(trial)
    }

    pub(super) fn take(&self) -> Vec<Range<u64>> {
        let map = std::mem::take(&mut *self.ranges.lock().unwrap_or_else(PoisonError::into_inner));
        map.into_iter().map(|(s, e)| s..e).collect()
    }
}

#[derive(Debug)]
pub(super) struct Zeroer {
    /// Whether the medium can zero without a write, as far as known.
    native: AtomicBool,
    /// Bytes that now read as zero, in either way.
    pub(super) zeroed: AtomicU64,
    pub(super) skipped: AtomicU64,
}

impl Default for Zeroer {
    fn default() -> Self {
        Zeroer { native: AtomicBool::new(true), zeroed: AtomicU64::new(0), skipped: AtomicU64::new(0) }
    }
}

impl Zeroer {
    /// Whether zeroes are still cheaper than data.
    pub(super) fn is_native(&self) -> bool {
        self.native.load(Ordering::Relaxed)
    }

    /// Makes `range` read as zero. Where zeroes must be written, `compare` reads first and skips what is zero.
    pub(super) fn zero(
        &self,
        io: &Io<'_>,
        range: Range<u64>,
        compare: bool,
        done: &dyn Fn(u64, Duration),
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            heed_signals(io)?;
            let end = range.end.min(at + ZERO_STEP);
            let aligned = at.next_multiple_of(ALIGN as u64)..end - end % ALIGN as u64;
            let began = Instant::now();
            let native = !aligned.is_empty()
                && self.is_native()
                && match io.medium().zero_range(aligned.start, aligned.end - aligned.start) {
                    Ok(()) => true,
                    Err(e) => {
                        tracing::info!("zeroes are written: the medium cannot zero by itself ({e})");
                        self.native.store(false, Ordering::Relaxed);
                        false
                    }
                };
            if native {
                self.zeroed.fetch_add(aligned.end - aligned.start, Ordering::Relaxed);
                done(aligned.end - aligned.start, began.elapsed());
                self.write(io, at..aligned.start, false, done)?;
                self.write(io, aligned.end..end, false, done)?;
            } else {
                self.write(io, at..end, compare, done)?;
            }
            at = end;
        }
        Ok(())
    }

    fn write(
        &self,
        io: &Io<'_>,
        range: Range<u64>,
        compare: bool,
        done: &dyn Fn(u64, Duration),
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let zeroes = Buffer::zeroed(CHUNK_LEN);
        let mut seen = if compare { Buffer::zeroed(CHUNK_LEN) } else { Buffer::zeroed(0) };
        let block = io.block() as u64;
        let mut at = range.start;
        while at < range.end {
            heed_signals(io)?;
            let began = Instant::now();
            let len = CHUNK.min(range.end - at);
            let zeroes =
                part(&zeroes, ..usize::try_from(len).map_err(Error::internal)?).map_err(Error::internal)?;
            let whole = at.is_multiple_of(block) && len.is_multiple_of(block);
            if let Some(seen) = seen.get_mut(..zeroes.len()).filter(|_| compare && whole) {
                let read = match io.read(seen, at) {
                    // A write repairs an old unreadable sector.
                    Err(e) if e.code() == Code::TargetReadFailed => false,
                    other => other.map(|()| true)?,
                };
                if read && is_zero(seen) {
                    self.skipped.fetch_add(len, Ordering::Relaxed);
                    done(len, began.elapsed());
                    at += len;
                    continue;
                }
            }
            if whole {
                io.write(zeroes, at)?;
            } else {
                io.write_any(zeroes, at)?;
            }
            self.zeroed.fetch_add(len, Ordering::Relaxed);
            done(len, began.elapsed());
            at += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_is_a_part_of_the_first_large_range() {
        let map = ZeroMap::default();
        let add = |range: Range<u64>, end| {
            assert!(map.add(range.clone()));
            map.take_trial(&range, end)
        };
        assert_eq!(add(0..TRIAL - 1, u64::MAX), None);
        // The target is still too short.
        assert_eq!(add(TRIAL - 1..2 * TRIAL, TRIAL - 1), None);
        assert_eq!(add(2 * TRIAL..3 * TRIAL, TRIAL), Some(0..TRIAL));
        assert_eq!(add(5 * TRIAL..9 * TRIAL, u64::MAX), None, "once");
        assert_eq!(map.take(), [TRIAL..3 * TRIAL, 5 * TRIAL..9 * TRIAL]);
    }

    #[test]
    fn neighbours_join() {
        let map = ZeroMap::default();
        for r in [10..20, 30..40, 20..30, 50..60, 0..10] {
            assert!(map.add(r));
        }
        assert_eq!(map.take(), [0..40, 50..60]);
        assert_eq!(map.take(), []);
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let map = ZeroMap::default();
        let added = (0..2 * MAX_RANGES as u64).filter(|i| map.add(i * 2..i * 2 + 1)).count();
        assert_eq!(added, MAX_RANGES);
        assert_eq!(map.take().len(), MAX_RANGES);
    }
}
