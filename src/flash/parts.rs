//! Parts of an image, each onto a device of its own, by the same engine and with the same promise as a whole image.
//!
//! The engine sees one medium of the image's size. Between the parts it reads zeroes there and writes nothing, and the image that it gets has
//! zeroes there too.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::job::Prepared;
use super::plan::{Plan, Step};
use super::receipt::Receipt;
use super::write;
use crate::disk::select::ImageSize;
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Piece, Source};
use crate::image::digest::{CHUNK, Digest256, chunk_digest, root};
use crate::progress::Progress;
use crate::sys::block::{Access, Device, Medium};
use crate::sys::buffer::{part, part_mut};

/// Bytes of the image, and the device that they go to, from its beginning on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    pub image: Range<u64>,
    pub node: PathBuf,
}

impl Prepared {
    /// Writes the parts, reads them back through their devices, and compares all of it with the digests of the checked image, which must have
    /// been read as a whole. Parts are in order, and begin and end at multiples of 4096.
    pub(crate) fn run_in_parts(&self, parts: &[Part], progress: &dyn Progress) -> Result<Receipt> {
        let started = SystemTime::now();
        let (ImageSize::Exact(size), Some(digests)) = (self.plan.image.size, &self.plan.image.chunks) else {
            return Err(Error::new(Code::Io, "the image was not read before it is written in parts"));
        };
        let medium = Parts::open(parts, size)?;
        let plan = body_only(&self.plan, size);
        let masked = Arc::new(Masked {
            parts: parts.iter().map(|p| p.image.clone()).collect(),
            digests: digests.clone(),
            changed: Mutex::new(digests.clone()),
        });
        let open = || -> Result<Box<dyn Source>> {
            Ok(Box::new(MaskedSource { masked: Arc::clone(&masked), inner: self.source()?, at: 0 }))
        };
        let mut outcome = write::execute(&plan, &open, &medium, progress)
            .map_err(|e| e.and_also("positions are those in the image"))?;
        let expected = root(&masked.changed.lock().unwrap_or_else(PoisonError::into_inner));
        if outcome.chunk_digest != expected {
            let path = plan.image.stored.path.display();
            let message = format!("the image {path} changed while it was being written: its digests differ");
            return Err(Error::new(Code::ImageChanged, message).object(path).after_write());
        }
        outcome.chunk_digest = root(digests);
        let between = size - parts.iter().map(|p| p.image.end - p.image.start).sum::<u64>();
        outcome.verified = outcome.verified.saturating_sub(between);
        Ok(Receipt::new(&self.plan, &outcome, self.checked, started, None))
    }
}

/// Neither a head nor a backup table: these devices are no disks of their own. The digests are those of what the engine gets.
fn body_only(plan: &Plan, size: u64) -> Plan {
    let mut plan = plan.clone();
    plan.steps = vec![Step::WriteBody { start: 0, end: Some(size), except: None }, Step::VerifyBody];
    plan.image.chunks = None;
    plan.image.chunk_digest = None;
    plan
}

/// The devices of the parts as one medium.
struct Parts {
    parts: Vec<(Range<u64>, Device)>,
    size: u64,
    block: usize,
}

/// What is at a place of the image, up to where something else begins.
enum Place<'a> {
    Part { device: &'a Device, at: u64, len: usize },
    Between { len: usize },
}

impl Parts {
    fn open(parts: &[Part], size: u64) -> Result<Parts> {
        let mut opened = Vec::new();
        for part in parts {
            let name = part.node.display();
            let failed = |what: &str, e: io::Error| {
                Error::new(Code::Io, format!("cannot {what} {name}")).object(&name).because(e).after_write()
            };
            let device = Device::open(&part.node, Access::ExclusiveDisk).map_err(|e| failed("open", e))?;
            let has = device.size().map_err(|e| failed("read the size of", e))?;
            if has < part.image.end.saturating_sub(part.image.start) {
                return Err(failed("use", io::Error::other(format!("it only has {has} bytes"))));
            }
            opened.push((part.image.clone(), device));
        }
        let block = opened.iter().map(|(_, device)| device.block_size()).max().unwrap_or(1);
        Ok(Parts { parts: opened, size: size.next_multiple_of(block as u64), block })
    }

    fn at(&self, offset: u64, len: usize) -> Place<'_> {
        let until = |end: u64| usize::try_from(end - offset).unwrap_or(usize::MAX).min(len);
        let next = self.parts.iter().find(|(range, _)| offset < range.end);
        match next {
            Some((range, device)) if range.start <= offset => {
                Place::Part { device, at: offset - range.start, len: until(range.end) }
            }
            Some((range, _)) => Place::Between { len: until(range.start) },
            None => Place::Between { len: until(self.size.max(offset)) },
        }
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        self.parts.iter().map(|(_, device)| device)
    }
}

impl Medium for Parts {
    fn size(&self) -> io::Result<u64> {
        // 0 after one of them has gone.
        let mut least = self.size;
        for device in self.devices() {
            if device.size()? == 0 {
                least = 0;
            }
        }
        Ok(least)
    }

    fn block_size(&self) -> usize {
        self.block
    }

    fn extend(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.at(offset, buf.len()) {
            Place::Part { device, at, len } => device.read_at(part_mut(buf, ..len)?, at),
            Place::Between { len } => {
                part_mut(buf, ..len)?.fill(0);
                Ok(len)
            }
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        match self.at(offset, buf.len()) {
            Place::Part { device, at, len } => device.write_at(part(buf, ..len)?, at),
            Place::Between { len } => Ok(len),
        }
    }

    /// An encrypted device cannot: zeroes on the disk would read as noise.
    fn zero_range(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        self.devices().try_for_each(Medium::flush)
    }

    fn drop_cache(&self) -> io::Result<()> {
        self.devices().try_for_each(Medium::drop_cache)
    }

    fn is_direct(&self) -> bool {
        self.devices().all(Medium::is_direct)
    }
}

/// What the sources of a run share: the image that was checked, and what it becomes.
struct Masked {
    parts: Vec<Range<u64>>,
    /// Of the chunks of the image.
    digests: Vec<Digest256>,
    /// The same, with those of the chunks that have got zeroes.
    changed: Mutex<Vec<Digest256>>,
}

/// The image with zeroes wherever no part is.
struct MaskedSource {
    masked: Arc<Masked>,
    inner: Box<dyn Source>,
    at: u64,
}

impl Source for MaskedSource {
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
        let piece = self.inner.next(buf)?;
        match piece {
            Piece::End => {}
            Piece::Zero(len) => self.at += len,
            Piece::Data(len) => {
                self.masked.mask(self.at, part_mut(buf, ..len).map_err(Error::internal)?)?;
                self.at += len as u64;
            }
        }
        Ok(piece)
    }
}

impl Masked {
    /// Zeroes what no part has of a chunk. As the digest of what is left says nothing, the chunk is compared before.
    fn mask(&self, offset: u64, chunk: &mut [u8]) -> Result<()> {
        let end = offset + chunk.len() as u64;
        let between = between(&self.parts, offset..end);
        if between.is_empty() {
            return Ok(());
        }
        let index = usize::try_from(offset / CHUNK).unwrap_or(usize::MAX);
        if self.digests.get(index) != Some(&chunk_digest(chunk)) {
            let message =
                format!("the image changed while it was being written: its bytes from {offset} on differ");
            return Err(Error::new(Code::ImageChanged, message));
        }
        for range in between {
            let at = |n: u64| usize::try_from(n - offset).unwrap_or(usize::MAX);
            part_mut(chunk, at(range.start)..at(range.end)).map_err(Error::internal)?.fill(0);
        }
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = changed.get_mut(index) {
            *place = chunk_digest(chunk);
        }
        Ok(())
    }
}

/// What no part has of `range`. The parts are in order.
fn between(parts: &[Range<u64>], range: Range<u64>) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut from = range.start;
    for part in parts {
        let start = part.start.clamp(from, range.end);
        if from < start {
            found.push(from..start);
        }
        from = from.max(part.end.min(range.end));
    }
    if from < range.end {
        found.push(from..range.end);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::digest::CHUNK_LEN;

    #[test]
    fn what_no_part_has_is_found() {
        let parts = [10..20, 20..30, 40..50];
        let found = |range| between(&parts, range).iter().map(|r| (r.start, r.end)).collect::<Vec<_>>();
        assert_eq!(found(0..60), [(0, 10), (30, 40), (50, 60)]);
        assert_eq!(found(10..30), []);
        assert_eq!(found(12..28), []);
        assert_eq!(found(0..5), [(0, 5)]);
        assert_eq!(found(25..45), [(30, 40)]);
        assert_eq!(found(50..60), [(50, 60)]);
        assert_eq!(found(35..36), [(35, 36)]);
    }

    struct Chunks(Vec<Vec<u8>>);

    impl Source for Chunks {
        fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
            if self.0.is_empty() {
                return Ok(Piece::End);
            }
            let chunk = self.0.remove(0);
            buf[..chunk.len()].copy_from_slice(&chunk);
            Ok(Piece::Data(chunk.len()))
        }
    }

    /// The bytes that come of two chunks and a half, and the digests that belong to them.
    fn masked(parts: Vec<Range<u64>>, damage: Option<usize>) -> Result<(Vec<u8>, Vec<Digest256>)> {
        let chunks = vec![vec![1; CHUNK_LEN], vec![2; CHUNK_LEN], vec![3; CHUNK_LEN / 2]];
        let digests: Vec<Digest256> = chunks.iter().map(|chunk| chunk_digest(chunk)).collect();
        let shared = Arc::new(Masked { parts, changed: Mutex::new(digests.clone()), digests });
        let mut chunks = chunks;
        if let Some(at) = damage {
            chunks[at / CHUNK_LEN][at % CHUNK_LEN] ^= 1;
        }
        let mut source = MaskedSource { masked: Arc::clone(&shared), inner: Box::new(Chunks(chunks)), at: 0 };
        let (mut all, mut buffer) = (Vec::new(), vec![0; CHUNK_LEN]);
        while let Piece::Data(len) = source.next(&mut buffer)? {
            all.extend_from_slice(&buffer[..len]);
        }
        let digests = shared.changed.lock().unwrap().clone();
        Ok((all, digests))
    }

    #[test]
    fn only_the_parts_come_through() {
        let parts = vec![4096..8192, CHUNK..2 * CHUNK + 4096];
        let (bytes, digests) = masked(parts.clone(), None).unwrap();
        for (at, byte) in (0..).zip(&bytes) {
            let inside = parts.iter().any(|part| part.contains(&at));
            assert_eq!(*byte, if inside { u8::try_from(1 + at / CHUNK).unwrap() } else { 0 }, "{at}");
        }
        let expected: Vec<Digest256> = bytes.chunks(CHUNK_LEN).map(chunk_digest).collect();
        assert_eq!(digests, expected);
    }

    #[test]
    fn a_changed_image_is_found_where_its_digest_says_nothing_any_more() {
        // Outside of the part, and in it.
        for at in [0, 5000] {
            let parts = std::iter::once(4096..8192).collect();
            assert_eq!(masked(parts, Some(at)).unwrap_err().code(), Code::ImageChanged);
        }
    }
}
