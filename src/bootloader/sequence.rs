//! The one order of writes for every kind of storage.
//!
//! Power may fail between any two calls. The *head* is the unit with the image's first bytes that are not filling. It is made
//! invalid before the body is changed, and written last, after the body was read back: a valid header never stands before
//! another image's body. Correct bytes are not written again.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::storage::{Storage, floor, grains, len, overlap, slice, slice_mut};
use crate::error::{Code, Error, Result};
use crate::sys::buffer::Buffer;

/// Bytes of the head that are written last: boot ROMs look for their header in the first sector of a bootloader.
const HEAD_KEY_BYTES: u64 = 512;

const INCOMPLETE: &str =
    "the bootloader at this place is incomplete: write it again before the device is switched off";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    head: bool,
    /// The key of the head is blank: the head is already invalid, perhaps by an interrupted run.
    invalid: bool,
    /// The device has other bytes than the image's filling before the head: perhaps an older bootloader's header.
    older: bool,
    body: Vec<Range<u64>>,
}

impl Difference {
    #[must_use]
    pub fn is_none(&self) -> bool {
        !self.head && self.body.is_empty()
    }

    /// Bytes of the pieces that a run would rewrite.
    fn bytes(&self, head: &Range<u64>) -> u64 {
        if self.is_none() { 0 } else { self.body.iter().map(len).sum::<u64>() + len(head) }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
    pub changed: bool,
    /// Each erase counts.
    pub blocks_erased: u64,
    /// Includes bytes around the image that were restored.
    pub bytes_written: u64,
}

pub struct Sequence<'a> {
    place: &'a mut dyn Storage,
    image: Range<u64>,
    /// The units that hold `image`.
    outer: Range<u64>,
    /// The future content of these units: the image, and the present bytes around it.
    goal: Buffer,
    scratch: Buffer,
    head: Range<u64>,
    key: Range<u64>,
    done: Done,
}

impl<'a> Sequence<'a> {
    /// The image must fit at `offset` of a storage of `size` bytes. Reads the bytes around it.
    pub fn new(place: &'a mut dyn Storage, image: &[u8], offset: u64, size: u64) -> Result<Self> {
        let unit = place.unit().max(1);
        let end = offset.saturating_add(image.len() as u64);
        if end > size || image.is_empty() {
            let message = format!("cannot write {}: the image does not fit", place.name());
            return Err(Error::new(Code::SpanOutsideDevice, message).object(place.name()));
        }
        let outer = floor(offset, unit)..end.next_multiple_of(unit).min(size);
        // All known formats have their header at the start, or after filling.
        let filling = image.iter().take_while(|b| matches!(b, 0 | 0xff)).count();
        let first = if filling == image.len() { offset } else { offset + filling as u64 };
        let head = floor(first, unit)..(floor(first, unit) + unit).min(outer.end);
        let key = first..(first + HEAD_KEY_BYTES).min(head.end).min(end);
        let stride = usize::try_from(place.stride().max(unit)).unwrap_or(usize::MAX);
        let goal = Buffer::zeroed(usize::try_from(len(&outer)).unwrap_or(usize::MAX));
        let done = Done::default();
        let scratch = Buffer::zeroed(stride);
        let mut this = Sequence { place, image: offset..end, outer, goal, scratch, head, key, done };
        for edge in [floor(offset, unit), floor(end - 1, unit)] {
            let edge = edge..(edge + unit).min(this.outer.end);
            let place = slice_mut(&mut this.goal, &edge, this.outer.start)?;
            this.place.read(place, edge.start)?;
        }
        slice_mut(&mut this.goal, &(offset..end), this.outer.start)?.copy_from_slice(image);
        Ok(this)
    }

    pub fn compare(&mut self) -> Result<Difference> {
        let mut found = Difference { head: false, invalid: false, older: false, body: Vec::new() };
        let first = self.first();
        for piece in self.pieces() {
            let there = fill(self.place, &mut self.scratch, &piece)?;
            let inside = overlap(&piece, &self.image);
            let there = slice(there, &inside, piece.start)?;
            let same = there == slice(&self.goal, &inside, self.outer.start)?;
            if piece == self.head {
                found.head = !same;
                found.invalid = is_blank(slice(&self.scratch, &self.key, piece.start)?);
            } else if !same {
                found.older |= piece == first && !is_blank(there);
                found.body.push(piece);
            }
        }
        Ok(found)
    }

    /// The most bytes that a run would write.
    #[must_use]
    pub(crate) fn cost(&self, difference: &Difference) -> u64 {
        difference.bytes(&self.head)
    }

    /// Writes what differs, and reads the whole image back.
    pub fn run(&mut self) -> Result<Done> {
        let difference = self.compare()?;
        if difference.is_none() {
            return Ok(self.done);
        }
        let span = difference.body.iter().chain([&self.head]);
        let span = span.clone().map(|r| r.start).min().unwrap_or(self.head.start)
            ..span.map(|r| r.end).max().unwrap_or(self.head.end);
        let result = self.place.unlock(span).and_then(|()| self.replace(&difference));
        self.place.relock();
        match result {
            Ok(()) => Ok(Done { changed: true, ..self.done }),
            Err(e) if self.done == Done::default() => Err(e),
            Err(e) => Err(e.after_write().and_also(INCOMPLETE)),
        }
    }

    fn replace(&mut self, difference: &Difference) -> Result<()> {
        let mut cleared = false;
        if !difference.body.is_empty() {
            let mut rest = difference.body.as_slice();
            if let Some((first, others)) = rest.split_first()
                && difference.older
            {
                self.spoil(
                    &(self.image.start
                        ..(self.image.start + HEAD_KEY_BYTES).min(first.end).min(self.image.end)),
                )?;
                self.rewrite(first)?;
                self.place.flush()?;
                rest = others;
            }
            if !difference.invalid {
                self.clear_head(false)?;
                self.place.flush()?;
                self.prove_cleared()?;
                cleared = true;
            }
            for piece in rest {
                self.rewrite(piece)?;
            }
            self.place.flush()?;
            for piece in &difference.body {
                self.settle(piece, Self::rewrite)?;
            }
        }
        if cleared {
            self.write_head()?;
        } else if difference.head {
            self.renew_head(difference.invalid)?;
        }
        self.place.flush()?;
        let head = self.head.clone();
        self.settle(&head, |this, _| this.renew_head(false))?;
        self.verify()
    }

    /// Makes the head invalid; bytes around the image stay, or are restored at once.
    fn clear_head(&mut self, invalid: bool) -> Result<()> {
        let (head, blank) = (self.head.clone(), self.place.blank());
        let Some(grain) = self.place.grain() else {
            let goal = slice(&self.goal, &head, self.outer.start)?;
            let mut bytes = Buffer::zeroed(goal.len());
            bytes.copy_from_slice(goal);
            slice_mut(&mut bytes, &overlap(&head, &self.image), head.start)?.fill(blank);
            return self.write(&bytes, head.start);
        };
        if !invalid {
            self.spoil(&self.key.clone())?;
        }
        self.erase(&head)?;
        self.put_back(&head, grain)
    }

    /// Overwrites a header before its block is erased, where possible.
    ///
    /// An interrupted erase may leave the start of a block intact: some chips first fill it with zeroes, from its end (UBI does
    /// the same, `nor_erase_prepare` in drivers/mtd/ubi/io.c). Zeroes can be written without an erase.
    fn spoil(&mut self, header: &Range<u64>) -> Result<()> {
        if self.place.grain() != Some(1) {
            return Ok(());
        }
        let zeroes = vec![0; usize::try_from(len(header)).unwrap_or(0)];
        self.write(&zeroes, header.start)
    }

    fn prove_cleared(&mut self) -> Result<()> {
        let there = fill(self.place, &mut self.scratch, &self.head)?;
        if is_blank(slice(there, &self.key, self.head.start)?) {
            return Ok(());
        }
        Err(self.differs(self.key.start))
    }

    fn renew_head(&mut self, invalid: bool) -> Result<()> {
        if self.place.grain().is_some() {
            self.clear_head(invalid)?;
        }
        self.write_head()
    }

    fn write_head(&mut self) -> Result<()> {
        let Some(grain) = self.place.grain() else { return self.write_goal(&self.head.clone()) };
        let inside = grains(&overlap(&self.head, &self.image), grain);
        let key = grains(&self.key, grain);
        for part in [inside.start..key.start, key.end..inside.end, key] {
            self.write_goal(&part)?;
        }
        Ok(())
    }

    fn rewrite(&mut self, piece: &Range<u64>) -> Result<()> {
        let Some(grain) = self.place.grain() else { return self.write_goal(piece) };
        self.erase(piece)?;
        self.put_back(piece, grain)?;
        self.write_goal(&grains(&overlap(piece, &self.image), grain))
    }

    /// Writes the bytes of an erased unit that are not the image's. They come first, because only memory has them.
    fn put_back(&mut self, unit: &Range<u64>, grain: u64) -> Result<()> {
        let inside = grains(&overlap(unit, &self.image), grain);
        self.write_goal(&(unit.start..inside.start))?;
        self.write_goal(&(inside.end..unit.end))
    }

    /// Reads a piece back; writes one that differs once more.
    fn settle(&mut self, piece: &Range<u64>, again: fn(&mut Self, &Range<u64>) -> Result<()>) -> Result<()> {
        let Some(at) = self.first_difference(piece)? else { return Ok(()) };
        tracing::warn!("{} differs at byte {at} after it was written; writing it again", self.place.name());
        again(self, piece)?;
        self.place.flush()?;
        match self.first_difference(piece)? {
            None => Ok(()),
            Some(at) => Err(self.differs(at)),
        }
    }

    fn first_difference(&mut self, piece: &Range<u64>) -> Result<Option<u64>> {
        let there = fill(self.place, &mut self.scratch, piece)?;
        let goal = slice(&self.goal, piece, self.outer.start)?;
        let at = there.iter().zip(goal).position(|(a, b)| a != b);
        Ok(at.map(|at| piece.start + at as u64))
    }

    /// Reads the whole image again and compares its digest, including the parts that were not written.
    fn verify(&mut self) -> Result<()> {
        if self.digest()? == sha256(slice(&self.goal, &self.image, self.outer.start)?) {
            return Ok(());
        }
        Err(self.differs(self.image.start))
    }

    pub fn digest(&mut self) -> Result<String> {
        let mut found = Sha256::new();
        for piece in self.pieces() {
            let there = fill(self.place, &mut self.scratch, &piece)?;
            found.update(slice(there, &overlap(&piece, &self.image), piece.start)?);
        }
        Ok(hex(&found.finalize()))
    }

    fn differs(&self, at: u64) -> Error {
        let name = self.place.name();
        let message = format!("{name} does not hold what was written to it, from byte {at} on");
        Error::new(Code::VerifyMismatch, message).object(name)
    }

    fn erase(&mut self, unit: &Range<u64>) -> Result<()> {
        self.done.blocks_erased += 1;
        self.place.erase(unit.start)
    }

    fn write_goal(&mut self, range: &Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        self.count(len(range));
        self.place.write(slice(&self.goal, range, self.outer.start)?, range.start)
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.count(bytes.len() as u64);
        self.place.write(bytes, offset)
    }

    fn count(&mut self, bytes: u64) {
        self.done.bytes_written += bytes;
        if self.place.erases_by_itself() {
            self.done.blocks_erased += bytes.div_ceil(self.place.unit().max(1));
        }
    }

    fn first(&self) -> Range<u64> {
        self.outer.start..(self.outer.start + self.place.unit().max(1)).min(self.outer.end)
    }

    /// The outer range in strides; the first unit and the head are pieces of their own.
    fn pieces(&self) -> Vec<Range<u64>> {
        let stride = self.scratch.len() as u64;
        let mut all = Vec::new();
        let mut cut = |from: u64, until: u64| {
            let mut at = from;
            while at < until {
                all.push(at..(at + stride).min(until));
                at += stride;
            }
        };
        let first = self.first().end.min(self.head.start);
        cut(self.outer.start, first);
        cut(first, self.head.start);
        cut(self.head.start, self.head.end);
        cut(self.head.end, self.outer.end);
        all
    }
}

#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn fill<'b>(place: &mut dyn Storage, scratch: &'b mut Buffer, piece: &Range<u64>) -> Result<&'b [u8]> {
    let buf = slice_mut(scratch, piece, piece.start)?;
    place.read(buf, piece.start)?;
    Ok(buf)
}

/// No boot ROM takes erased flash or zeroes for a header.
fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0) || bytes.iter().all(|b| *b == 0xff)
}
