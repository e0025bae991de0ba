//! Writes the body of the image: writes data, zeroes zeroes, and skips what the target already has.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::zero::ZeroMap;
use super::{Writer, heed_signals, locked};
use crate::disk::select::ImageSize;
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Extent, pass, workers};
use crate::image::digest::{CHUNK, CHUNK_LEN, Digest256, chunk_digest, is_zero, root, zero_chunk};
use crate::sys::buffer::{self, Buffer};

/// Within a chunk of data, the medium zeroes blocks of this size; for smaller ones a request costs more than the bytes.
const ZERO_BLOCK: usize = 128 << 10;

/// Unit of writing where data differs: small enough to spare a flash chip, large enough to be quick.
const DIFF_BLOCK: usize = 64 << 10;

/// Decides, chunk by chunk, whether the target is read before it is written. Samples the target: the first chunks of data,
/// then every 32nd. A chunk that already matches turns comparing on; several mismatches in a row turn it off. So a repeated
/// flash writes nothing twice, an interrupted one continues at read speed to where it stopped, and any other disk costs a
/// few reads.
#[derive(Debug)]
struct Comparing {
    on: AtomicBool,
    misses: AtomicU32,
    seen: AtomicU32,
}

impl Comparing {
    const GIVE_UP: u32 = 8;
    const SAMPLE_EVERY: u32 = 32;

    fn new() -> Self {
        Comparing { on: AtomicBool::new(true), misses: AtomicU32::new(0), seen: AtomicU32::new(0) }
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn wants(&self) -> bool {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed);
        self.is_on() || seen.is_multiple_of(Self::SAMPLE_EVERY)
    }

    fn found(&self, alike: bool) {
        if alike {
            self.misses.store(0, Ordering::Relaxed);
            self.on.store(true, Ordering::Relaxed);
        } else if self.misses.fetch_add(1, Ordering::Relaxed) + 1 >= Self::GIVE_UP {
            self.on.store(false, Ordering::Relaxed);
        }
    }
}

struct Body {
    comparing: Comparing,
    zeroes: ZeroMap,
    /// Digests as they are computed, unless they were known before.
    digests: Option<Mutex<Vec<Digest256>>>,
}

impl Writer<'_> {
    /// Writes everything except first MiB and backup GPT, zeroes the rest, and flushes.
    pub(super) fn write_body(&mut self) -> Result<()> {
        let known = self.plan.image.chunks.is_some();
        let body = Body {
            comparing: Comparing::new(),
            zeroes: ZeroMap::default(),
            digests: (!known).then(|| Mutex::new(Vec::new())),
        };
        let capacity = self.io.size()?;
        let limited = self.io.block() > 1;
        let mut edges = std::mem::take(&mut self.edges);
        let this = &*self;
        let mut in_order = |extent: &Extent<'_>| {
            heed_signals(&this.io)?;
            if limited && extent.end() > capacity {
                return Err(this.does_not_fit(capacity));
            }
            this.keep_edges(extent, &mut edges);
            Ok(())
        };
        let scratch = || Buffer::zeroed(CHUNK_LEN);
        let size = pass(&mut *(this.open)()?, workers(), &mut in_order, &scratch, &|scratch, extent| {
            this.write_extent(&body, scratch, extent)
        })?;
        self.edges = edges;
        self.size = size;
        self.take_digests(body.digests)?;

        let comparing = body.comparing.is_on();
        self.io.extend(size)?;
        for range in body.zeroes.take() {
            self.zero(range, comparing)?;
        }
        self.io.flush()
    }

    fn keep_edges(&self, extent: &Extent<'_>, edges: &mut std::collections::BTreeMap<u64, Vec<u8>>) {
        match extent {
            Extent::Data { offset, bytes } if self.is_edge(*offset) => {
                edges.insert(*offset, bytes.to_vec());
            }
            Extent::Data { .. } => {}
            Extent::Zero { offset, len } => {
                for (chunk, len) in chunks_of(&(*offset..offset + len)).filter(|(c, _)| self.is_edge(*c)) {
                    edges.insert(chunk, vec![0; len]);
                }
            }
        }
    }

    /// Takes over the digests of the pass, or compares them with those known before.
    fn take_digests(&mut self, digests: Option<Mutex<Vec<Digest256>>>) -> Result<()> {
        if let ImageSize::Exact(n) = self.plan.image.size
            && n != self.size
        {
            return Err(self.image_changed(&format!("it had {n} bytes and now has {}", self.size)));
        }
        if let Some(digests) = digests {
            self.chunks = digests.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        // The edges are written from this memory, so they must be what was checked.
        let wrong = self.edges.iter().find(|(offset, bytes)| {
            let known = usize::try_from(*offset / CHUNK).ok().and_then(|i| self.chunks.get(i));
            known != Some(&chunk_digest(bytes))
        });
        if let Some((offset, _)) = wrong {
            return Err(self.image_changed(&format!("its bytes from {offset} on differ")));
        }
        if self.plan.image.chunk_digest.is_some_and(|d| d != root(&self.chunks)) {
            return Err(self.image_changed("its digests differ"));
        }
        Ok(())
    }

    fn write_extent(&self, body: &Body, scratch: &mut Buffer, extent: &Extent<'_>) -> Result<()> {
        match extent {
            Extent::Data { offset, bytes } => {
                let zero = is_zero(bytes);
                if let Some(digests) = &body.digests {
                    let whole = zero && bytes.len() == CHUNK_LEN;
                    record(digests, *offset, if whole { zero_chunk() } else { Digest256::of(bytes) });
                }
                if self.is_edge(*offset) {
                    return self.write_around_edges(body, scratch, *offset, bytes);
                }
                self.write_data(body, scratch, *offset, bytes, zero)
            }
            Extent::Zero { offset, len } => {
                let range = *offset..offset + len;
                if let Some(digests) = &body.digests {
                    for (chunk, len) in chunks_of(&range) {
                        let digest =
                            if len == CHUNK_LEN { zero_chunk() } else { chunk_digest(&vec![0; len]) };
                        record(digests, chunk, digest);
                    }
                }
                let start = range.start.max(self.head.end).min(range.end);
                self.progress.advance(start - range.start);
                self.add_zeroes(body, start..range.end)
            }
        }
    }

    /// Writes a chunk without its part of first MiB and backup GPT.
    fn write_around_edges(&self, body: &Body, scratch: &mut Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut at = 0;
        for edge in self.edge_ranges(offset, bytes.len()) {
            let between = part(bytes, &(at..edge.start))?;
            self.write_data(body, scratch, offset + at as u64, between, is_zero(between))?;
            self.progress.advance(edge.len() as u64);
            at = edge.end;
        }
        let rest = part(bytes, &(at..bytes.len()))?;
        self.write_data(body, scratch, offset + at as u64, rest, is_zero(rest))
    }

    /// Notes a range for zeroing, or zeroes it at once if too many are noted. A part of the first large one is not left for later, so that it is
    /// known what zeroes cost.
    fn add_zeroes(&self, body: &Body, range: Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if !body.zeroes.add(range.clone()) {
            return self.zero(range, body.comparing.is_on());
        }
        // A plain file may still be too short.
        match body.zeroes.take_trial(&range, self.io.size()?) {
            Some(range) => self.zero(range, body.comparing.is_on()),
            None => Ok(()),
        }
    }

    fn zero(&self, range: Range<u64>, comparing: bool) -> Result<()> {
        self.zeroer.zero(&self.io, range, comparing, &|n, took| self.progress.advance_zeroes(n, took))
    }

    fn write_data(
        &self,
        body: &Body,
        scratch: &mut Buffer,
        offset: u64,
        bytes: &[u8],
        zero: bool,
    ) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len() as u64;
        if zero {
            return self.add_zeroes(body, offset..offset + len);
        }
        if body.comparing.wants() {
            self.write_difference(body, scratch, offset, bytes)?;
            self.progress.advance(len);
            return Ok(());
        }
        let native = self.zeroer.is_native();
        let mut zeroes = 0;
        for run in
            runs(bytes.len(), ZERO_BLOCK, |block| native && bytes.get(block.clone()).is_some_and(is_zero))
        {
            let at = offset + run.range.start as u64;
            // The last block of an image may not fill a sector: it is merged like data.
            if run.marked && body.zeroes.add(at..at + run.range.len() as u64) {
                zeroes += run.range.len() as u64;
            } else {
                self.write_bytes(part(bytes, &run.range)?, at)?;
            }
        }
        self.progress.advance(len - zeroes);
        Ok(())
    }

    /// Reads the target first, and writes only the blocks that differ.
    fn write_difference(&self, body: &Body, scratch: &mut Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        if !self.is_readable(body, scratch, offset, bytes.len() as u64)? {
            return self.write_bytes(bytes, offset);
        }
        let seen = part(scratch, &(0..bytes.len()))?;
        let mut alike = 0usize;
        for run in runs(bytes.len(), DIFF_BLOCK, |block| {
            bytes.get(block.clone()).is_some_and(|new| seen.get(block.clone()) == Some(new))
        }) {
            if run.marked {
                alike += run.range.len();
            } else {
                self.write_bytes(part(bytes, &run.range)?, offset + run.range.start as u64)?;
            }
        }
        self.skipped.fetch_add(alike as u64, Ordering::Relaxed);
        body.comparing.found(alike * 2 >= bytes.len());
        Ok(())
    }

    /// Reads a part of the target into `scratch`. `false` where it cannot be read: a write repairs an old unreadable sector, and
    /// a plain file may still be too short.
    fn is_readable(&self, body: &Body, scratch: &mut Buffer, offset: u64, len: u64) -> Result<bool> {
        if !offset.is_multiple_of(self.io.block() as u64) || self.io.size()? < offset + len {
            return Ok(false);
        }
        match self.io.read_any(scratch, offset, len) {
            Ok(_) => Ok(true),
            Err(e) if e.code() == Code::TargetReadFailed => {
                tracing::warn!("{}; writing there without comparing", e.message());
                body.comparing.found(false);
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Writes data at a block boundary; a last partial block is merged with the target's bytes.
    pub(super) fn write_bytes(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let block = self.io.block();
        let whole = if offset.is_multiple_of(block as u64) { bytes.len() - bytes.len() % block } else { 0 };
        let (whole, rest) = bytes.split_at(whole);
        self.io.write(whole, offset)?;
        if !rest.is_empty() {
            self.io.write_any(rest, offset + whole.len() as u64)?;
        }
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn does_not_fit(&self, size: u64) -> Error {
        let target = self.plan.target.name.display();
        Error::new(Code::TargetTooSmall, format!("the image is larger than {target}, which has {size} bytes"))
            .object(target)
    }
}

pub(super) fn chunks_of(range: &Range<u64>) -> impl Iterator<Item = (u64, usize)> {
    let end = range.end;
    (range.start / CHUNK..end.div_ceil(CHUNK)).map(move |i| {
        let at = i * CHUNK;
        (at, usize::try_from(CHUNK.min(end - at)).unwrap_or(CHUNK_LEN))
    })
}

fn record(digests: &Mutex<Vec<Digest256>>, offset: u64, digest: Digest256) {
    let Ok(index) = usize::try_from(offset / CHUNK) else { return };
    let mut digests = locked(digests);
    if digests.len() <= index {
        digests.resize(index + 1, Digest256([0; 32]));
    }
    if let Some(place) = digests.get_mut(index) {
        *place = digest;
    }
}

fn part<'b>(bytes: &'b [u8], range: &Range<usize>) -> Result<&'b [u8]> {
    buffer::part(bytes, range.clone()).map_err(Error::internal)
}

#[derive(Debug, PartialEq, Eq)]
struct Run {
    range: Range<usize>,
    marked: bool,
}

fn runs(len: usize, block: usize, mut mark: impl FnMut(&Range<usize>) -> bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for start in (0..len).step_by(block) {
        let range = start..len.min(start + block);
        let marked = mark(&range);
        match runs.last_mut().filter(|r| r.marked == marked) {
            Some(run) => run.range.end = range.end,
            None => runs.push(Run { range, marked }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_everything_once() {
        assert_eq!(runs(0, 4, |_| true), []);
        assert_eq!(
            runs(10, 4, |r| r.start == 4),
            [
                Run { range: 0..4, marked: false },
                Run { range: 4..8, marked: true },
                Run { range: 8..10, marked: false }
            ]
        );
        assert_eq!(runs(10, 4, |_| false), [Run { range: 0..10, marked: false }]);
    }

    #[test]
    fn comparing_gives_up_and_resumes() {
        let c = Comparing::new();
        for _ in 0..Comparing::GIVE_UP {
            assert!(c.wants());
            c.found(false);
        }
        let sampled = (0..Comparing::SAMPLE_EVERY).filter(|_| c.wants()).count();
        assert_eq!(sampled, 1);
        c.found(true);
        assert!(c.wants() && c.wants());
    }
}
