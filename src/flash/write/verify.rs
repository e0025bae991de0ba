//! Reads the medium back, past the page cache, and compares it with the image's digests, zero ranges included.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::body::chunks_of;
use super::{Writer, heed_signals, locked};
use crate::disk::partition::Table;
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Extent, pass, side_by_side, workers};
use crate::image::digest::{CHUNK, CHUNK_LEN, Digest256, chunk_digest, is_zero, zero_chunk};
use crate::sys::buffer::Buffer;
use crate::sys::log::events;

/// How much of the image's end is read again once the head is written. A card that keeps what lies past its true end at its start has
/// shown that in the body, unless both places are empty there: balenaOS images are, between the first MiB and the first partition
/// at 4 MiB.
const TAIL: u64 = 8 * CHUNK;

impl Writer<'_> {
    /// Reads the whole body back. Chunks that differ are written once more, and then everything is read again: a write may
    /// damage another place that was correct before (a card that claims more than it has).
    pub(super) fn verify_body(&mut self) -> Result<()> {
        for rewritten in [false, true] {
            if rewritten {
                // All is read once more: neither percent nor time left would be true.
                self.progress.expect(None);
            }
            self.io.drop_cache()?;
            self.verified.store(0, Ordering::Relaxed);
            let bad = self.differing_chunks()?;
            let Some(first) = bad.first() else { return Ok(()) };
            let places = self.first_bad_bytes(&bad, !rewritten)?;
            if rewritten {
                return Err(self.mismatch(places.get(first).copied().unwrap_or(*first)));
            }
            self.io.flush()?;
        }
        Ok(())
    }

    /// Reads all chunks, several at a time; returns those that differ twice.
    fn differing_chunks(&self) -> Result<BTreeSet<u64>> {
        let next = AtomicU64::new(0);
        let bad = Mutex::new(BTreeSet::new());
        side_by_side(workers(), &|failed| {
            let mut buffer = Buffer::zeroed(CHUNK_LEN);
            loop {
                heed_signals(&self.io)?;
                let chunk = next.fetch_add(CHUNK, Ordering::Relaxed);
                if chunk >= self.size || failed.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if self.chunk_is_right(&mut buffer, chunk)? {
                    self.count_verified(chunk);
                    continue;
                }
                // Read again: a bit may have flipped on the way and not on the medium.
                self.io.drop_cache()?;
                if self.chunk_is_right(&mut buffer, chunk)? {
                    tracing::warn!("bytes from {chunk} on read differently the second time");
                    self.count_verified(chunk);
                } else {
                    locked(&bad).insert(chunk);
                }
            }
        })?;
        Ok(std::mem::take(&mut *locked(&bad)))
    }

    /// Counts a chunk as read back, except first MiB and backup GPT, which count once they are written.
    fn count_verified(&self, chunk: u64) {
        let end = self.size.min(chunk + CHUNK);
        let overlap = |r: &std::ops::Range<u64>| r.end.min(end).saturating_sub(r.start.max(chunk));
        let later: u64 = std::iter::once(&self.head).chain(&self.backup).map(overlap).sum();
        let now = (end - chunk).saturating_sub(later);
        self.verified.fetch_add(now, Ordering::Relaxed);
        self.progress.advance(now);
    }

    fn chunk_is_right(&self, buffer: &mut Buffer, chunk: u64) -> Result<bool> {
        let Some(expected) = self.expected(chunk) else {
            return Err(self.image_changed("it has more chunks than were digested"));
        };
        let seen = self.io.read_any(buffer, chunk, CHUNK.min(self.size - chunk))?;
        Ok(digest_matches(seen, expected))
    }

    /// The first wrong byte of each chunk in `bad`, by the image; with `rewrite` the chunks are written again.
    fn first_bad_bytes(&self, bad: &BTreeSet<u64>, rewrite: bool) -> Result<BTreeMap<u64, u64>> {
        let first_bad = Mutex::new(BTreeMap::new());
        let each = |buffer: &mut Buffer, chunk: u64, bytes: &[u8]| -> Result<()> {
            if self.chunks.get(usize::try_from(chunk / CHUNK).unwrap_or(usize::MAX))
                != Some(&chunk_digest(bytes))
            {
                return Err(self.image_changed(&format!("its bytes from {chunk} on differ")));
            }
            let masked = self.masked(chunk, bytes);
            let seen = self.io.read_any(buffer, chunk, masked.len() as u64)?;
            let at = chunk + seen.iter().zip(&masked).position(|(a, b)| a != b).unwrap_or(0) as u64;
            locked(&first_bad).insert(chunk, at);
            if !rewrite {
                return Ok(());
            }
            self.warn_mismatch(at);
            self.rewritten.fetch_add(1, Ordering::Relaxed);
            self.written.fetch_add(masked.len() as u64, Ordering::Relaxed);
            // Plain writes, for zeroes too: the device may have failed to zero before.
            self.io.write_any(&masked, chunk)
        };
        let state = || Buffer::zeroed(CHUNK_LEN);
        pass(&mut *(self.open)()?, workers(), &mut |_| heed_signals(&self.io), &state, &|buffer, extent| {
            match extent {
                Extent::Data { offset, bytes } if bad.contains(offset) => each(buffer, *offset, bytes),
                Extent::Data { .. } => Ok(()),
                Extent::Zero { offset, len } => chunks_of(&(*offset..offset + len))
                    .filter(|(chunk, _)| bad.contains(chunk))
                    .try_for_each(|(chunk, len)| each(buffer, chunk, &vec![0; len])),
            }
        })?;
        Ok(std::mem::take(&mut *locked(&first_bad)))
    }

    /// First byte at which the medium differs from `bytes`, read past the cache, twice if necessary.
    pub(super) fn first_difference(&self, offset: u64, bytes: &[u8]) -> Result<Option<u64>> {
        let mut buffer = Buffer::zeroed(0);
        let mut bad = None;
        for _ in 0..2 {
            self.io.drop_cache()?;
            let seen = self.io.read_any(&mut buffer, offset, bytes.len() as u64)?;
            bad = seen.iter().zip(bytes).position(|(a, b)| a != b).map(|i| offset + i as u64);
            if bad.is_none() {
                break;
            }
        }
        Ok(bad)
    }

    /// After the backup GPT and the head but for its first `first` bytes: neither may have changed the place of the other.
    pub(super) fn refuse_folded_card(&self, first: u64) -> Result<()> {
        self.read_tail_again()?;
        let zeroes = vec![0; usize::try_from(first).unwrap_or(0)];
        self.first_difference(0, &zeroes)?.map_or(Ok(()), |at| Err(self.folded(at)))
    }

    /// Everything of the image's end but the head must be there.
    pub(super) fn read_tail_again(&self) -> Result<()> {
        let start = self.size.saturating_sub(TAIL).max(self.head.end);
        let mut buffer = Buffer::zeroed(CHUNK_LEN);
        let mut is_right = |chunk: u64, expected: Digest256| -> Result<bool> {
            self.io.drop_cache()?;
            Ok(digest_matches(self.io.read_any(&mut buffer, chunk, CHUNK.min(self.size - chunk))?, expected))
        };
        for (chunk, expected) in (0..).step_by(CHUNK_LEN).zip(&self.chunks) {
            if chunk >= start && !is_right(chunk, *expected)? && !is_right(chunk, *expected)? {
                return Err(self.folded(chunk));
            }
        }
        Ok(())
    }

    fn folded(&self, at: u64) -> Error {
        let target = self.target();
        let message = format!(
            "{target} does not keep the image: a write elsewhere has changed its bytes from {at} on; it has less space than it says"
        );
        Error::new(Code::VerifyMismatch, message).object(target)
    }

    pub(super) fn place(&self, at: u64) -> String {
        place(self.plan.image.table.as_ref(), self.plan.target.block_size, at)
    }

    pub(super) fn warn_mismatch(&self, at: u64) {
        let device = self.target();
        tracing::warn!(
            MESSAGE_ID = events::VERIFY_MISMATCH,
            COPAL_DEVICE = %device,
            COPAL_OFFSET = at,
            "{device} does not keep what was written to it: it differs at {}; writing it once more",
            self.place(at)
        );
    }

    pub(super) fn mismatch(&self, at: u64) -> Error {
        let message = format!("{} does not keep the image: it differs at {}", self.target(), self.place(at));
        Error::new(Code::VerifyMismatch, message).object(self.target())
    }

    fn target(&self) -> std::path::Display<'_> {
        self.plan.target.name.display()
    }
}

/// Avoids a digest where zeroes are expected.
fn digest_matches(seen: &[u8], expected: Digest256) -> bool {
    if seen.len() == CHUNK_LEN && expected == zero_chunk() {
        is_zero(seen)
    } else {
        Digest256::of(seen) == expected
    }
}

pub(in crate::flash) fn place(table: Option<&Table>, sector_size: u32, at: u64) -> String {
    let sector = at / u64::from(sector_size.max(1));
    let partition =
        table.and_then(|t| t.partitions.iter().find(|p| (p.start..p.start + p.size).contains(&at)));
    let inside = match partition {
        Some(p) => {
            let name = p.label.as_deref().or(p.name.as_deref()).unwrap_or("no label");
            format!("partition {} ({name})", p.index)
        }
        None => "no partition".to_owned(),
    };
    format!("byte {at}, sector {sector}, in {inside}")
}
