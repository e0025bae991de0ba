//! The few blocks of a stream that the analysis needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::image::chunks::Extent;
use crate::image::digest::CHUNK;
use crate::sys::buffer::{part, part_mut};

/// Divides a chunk, so no block spans two.
const BLOCK: u64 = 4096;

/// 4 MiB. Tables and folders take a few dozen blocks; only a hostile image needs more.
const MAX_BLOCKS: usize = 1024;

const _: () = assert!(CHUNK.is_multiple_of(BLOCK));

#[derive(Default)]
pub(super) struct Sparse {
    have: BTreeMap<u64, Vec<u8>>,
    requested: BTreeSet<u64>,
    size: Option<u64>,
}

impl Sparse {
    /// Reads from the kept blocks. A missing block is requested, and the answer is `WouldBlock`.
    pub(super) fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if self.size.is_some_and(|size| end > size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut complete = true;
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let Some(data) = self.have.get(&block) else {
                if self.have.len() + self.requested.len() >= MAX_BLOCKS {
                    return Err(io::Error::other("its headers are spread over too many blocks"));
                }
                self.requested.insert(block);
                complete = false;
                continue;
            };
            let base = block * BLOCK;
            let (from, until) = (offset.max(base), end.min(base + BLOCK));
            // Only the last block of an image is short.
            if until > base + data.len() as u64 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let source = slice(data, from - base, until - base)?;
            let target = part_mut(buf, usize::try_from(from - offset).unwrap_or(usize::MAX)..)?;
            part_mut(target, ..source.len())?.copy_from_slice(source);
        }
        if complete { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Keeps the requested blocks of `extent`. Returns whether there were any.
    pub(super) fn take(&mut self, extent: &Extent<'_>) -> io::Result<bool> {
        let (start, len) = match extent {
            Extent::Data { offset, bytes } => (*offset, bytes.len() as u64),
            Extent::Zero { offset, len } => (*offset, *len),
        };
        let blocks: Vec<u64> =
            self.requested.range(start / BLOCK..(start + len).div_ceil(BLOCK)).copied().collect();
        for block in &blocks {
            let from = block * BLOCK - start;
            let until = (from + BLOCK).min(len);
            let data = match extent {
                Extent::Data { bytes, .. } => slice(bytes, from, until)?.to_vec(),
                Extent::Zero { .. } => vec![0; usize::try_from(until - from).unwrap_or(0)],
            };
            self.have.insert(*block, data);
            self.requested.remove(block);
        }
        Ok(!blocks.is_empty())
    }

    pub(super) fn ended(&mut self, size: u64) {
        self.size = Some(size);
        self.requested.retain(|block| block * BLOCK < size);
    }

    pub(super) fn size(&self) -> Option<u64> {
        self.size
    }

    pub(super) fn last_requested(&self) -> Option<u64> {
        self.requested.last().map(|block| block * BLOCK)
    }
}

fn slice(data: &[u8], from: u64, until: u64) -> io::Result<&[u8]> {
    let at = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    part(data, at(from)..at(until))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_asked_for_once_and_kept() {
        let mut sparse = Sparse::default();
        let mut buf = [9; 6000];
        assert_eq!(sparse.read_at(4000, &mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let data: Vec<u8> = (0..8192u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
        assert!(sparse.take(&Extent::Data { offset: 0, bytes: &data }).unwrap());
        assert_eq!(sparse.read_at(4000, &mut buf).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(sparse.take(&Extent::Zero { offset: 8192, len: 1 << 40 }).unwrap());
        assert!(!sparse.take(&Extent::Zero { offset: 8192, len: 1 << 40 }).unwrap());
        sparse.read_at(4000, &mut buf).unwrap();
        assert_eq!(buf[..4192], data[4000..]);
        assert!(buf[4192..].iter().all(|b| *b == 0));
        sparse.ended(10_000);
        sparse.read_at(9990, &mut buf[..10]).unwrap();
        assert_eq!(sparse.read_at(9990, &mut buf[..11]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn no_more_than_a_few_mebibytes_are_kept() {
        let mut sparse = Sparse::default();
        let kinds: Vec<_> =
            (0..2000).map(|i| sparse.read_at(i * 10_000, &mut [0; 8]).unwrap_err().kind()).collect();
        assert_eq!(kinds[0], io::ErrorKind::WouldBlock);
        assert_eq!(kinds[1999], io::ErrorKind::Other);
    }
}
