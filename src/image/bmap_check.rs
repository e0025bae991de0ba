//! Compares a block map with the image while it passes by.

use std::path::Path;

use super::bmap::{Bmap, Hasher};
use super::pass::zeroes;
use crate::error::{Code, Error, Result};
use crate::image::chunks::Extent;
use crate::image::digest::is_zero;
use crate::sys::buffer::part;

pub(super) struct BmapCheck<'a> {
    bmap: &'a Bmap,
    map: &'a Path,
    image: &'a Path,
    range: usize,
    hasher: Option<Hasher>,
}

impl<'a> BmapCheck<'a> {
    pub(super) fn new(bmap: &'a Bmap, map: &'a Path, image: &'a Path) -> Self {
        BmapCheck { bmap, map, image, range: 0, hasher: None }
    }

    pub(super) fn see(&mut self, extent: &Extent<'_>) -> Result<()> {
        let (mut at, end) = match extent {
            Extent::Data { offset, bytes } => (*offset, offset + bytes.len() as u64),
            Extent::Zero { offset, len } => (*offset, offset + len),
        };
        let start = at;
        while at < end {
            let (mapped, until) = self.segment(at);
            let until = until.min(end);
            let bytes = match extent {
                Extent::Data { bytes, .. } => {
                    let index = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
                    Some(part(bytes, index(at)..index(until)).map_err(Error::internal)?)
                }
                Extent::Zero { .. } => None,
            };
            if mapped {
                self.hash(bytes, until - at);
                self.close(until)?;
            } else if let Some(bytes) = bytes.filter(|b| !is_zero(b)) {
                let offset = at + bytes.iter().take_while(|b| **b == 0).count() as u64;
                return Err(
                    self.mismatch(&format!("the image has data at byte {offset}, which the map leaves out"))
                );
            }
            at = until;
        }
        Ok(())
    }

    pub(super) fn finish(self, size: u64) -> Result<()> {
        if size == self.bmap.image_size {
            return Ok(());
        }
        let mapped = self.bmap.image_size;
        Err(self.mismatch(&format!("the map is for an image of {mapped} bytes, this one has {size}")))
    }

    fn segment(&self, at: u64) -> (bool, u64) {
        let block = self.bmap.block_size;
        match self.bmap.ranges.get(self.range) {
            None => (false, u64::MAX),
            Some(range) if at < range.first.saturating_mul(block) => {
                (false, range.first.saturating_mul(block))
            }
            Some(_) => (true, self.range_end()),
        }
    }

    /// In bytes; the last block may not be whole.
    fn range_end(&self) -> u64 {
        let last = self.bmap.ranges.get(self.range).map_or(0, |r| r.last);
        (last + 1).saturating_mul(self.bmap.block_size).min(self.bmap.image_size)
    }

    fn hash(&mut self, bytes: Option<&[u8]>, len: u64) {
        let stated = self.bmap.ranges.get(self.range).is_some_and(|r| r.checksum.is_some());
        let Some(kind) = self.bmap.checksum.filter(|_| stated) else { return };
        let hasher = self.hasher.get_or_insert_with(|| kind.hasher());
        match bytes {
            Some(bytes) => hasher.update(bytes),
            None => zeroes(len, |z| hasher.update(z)),
        }
    }

    fn close(&mut self, at: u64) -> Result<()> {
        if at < self.range_end() {
            return Ok(());
        }
        if let (Some(hasher), Some(range)) = (self.hasher.take(), self.bmap.ranges.get(self.range))
            && range.checksum.as_deref() != Some(hasher.hex().as_str())
        {
            let (first, last) = (range.first, range.last);
            let byte = first.saturating_mul(self.bmap.block_size);
            return Err(
                self.mismatch(&format!("blocks {first}-{last}, from byte {byte}, have another checksum"))
            );
        }
        self.range += 1;
        Ok(())
    }

    fn mismatch(&self, why: &str) -> Error {
        let (image, map) = (self.image.display(), self.map.display());
        Error::new(Code::BmapMismatch, format!("image {image} does not match {map}: {why}")).object(image)
    }
}
