//! A disk and a NOR chip in memory that keep a log of what was done to them, and can fail.

use std::ops::Range;

use copal::bootloader::storage::Storage;
use copal::error::{Code, Error, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Write(u64, Vec<u8>),
    Erase(u64),
    Flush,
}

/// A call that may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// This call of any kind fails, and those after it work.
    Call(usize),
    /// The write with this number keeps a byte wrong.
    Corrupt(usize),
    /// Every write of this byte of the device keeps it wrong.
    Worn(u64),
}

pub struct Fake {
    pub unit: u64,
    pub stride: u64,
    /// Of a NOR chip.
    pub grain: Option<u64>,
    pub bytes: Vec<u8>,
    pub log: Vec<Op>,
    pub fault: Option<Fault>,
    pub calls: usize,
    pub unlocked: Vec<Range<u64>>,
    pub relocked: usize,
}

impl Fake {
    pub fn new(shape: &Shape, bytes: Vec<u8>) -> Fake {
        let (unit, stride, grain) = (shape.unit, shape.stride, shape.grain);
        Fake {
            unit,
            stride,
            grain,
            bytes,
            log: Vec::new(),
            fault: None,
            calls: 0,
            unlocked: Vec::new(),
            relocked: 0,
        }
    }

    fn call(&mut self, code: Code) -> Result<()> {
        self.calls += 1;
        if self.fault == Some(Fault::Call(self.calls - 1)) {
            return Err(Error::new(code, "cannot do it"));
        }
        Ok(())
    }

    fn writes(&self) -> usize {
        self.log.iter().filter(|op| matches!(op, Op::Write(..))).count()
    }
}

/// How a place is divided.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub unit: u64,
    pub stride: u64,
    pub grain: Option<u64>,
}

/// What a write leaves of `bytes` at `at`: NOR can only clear bits.
pub fn apply(state: &mut [u8], at: u64, bytes: &[u8], nor: bool) {
    let at = usize::try_from(at).unwrap();
    for (old, new) in state[at..at + bytes.len()].iter_mut().zip(bytes) {
        *old = if nor { *old & new } else { *new };
    }
}

impl Storage for Fake {
    fn name(&self) -> String {
        "fake".into()
    }

    fn unit(&self) -> u64 {
        self.unit
    }

    fn stride(&self) -> u64 {
        self.stride
    }

    fn grain(&self) -> Option<u64> {
        self.grain
    }

    fn blank(&self) -> u8 {
        if self.grain.is_some() { 0xff } else { 0 }
    }

    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.call(Code::TargetReadFailed)?;
        assert!(offset.is_multiple_of(self.unit) && !buf.is_empty(), "{offset}");
        let at = usize::try_from(offset).unwrap();
        buf.copy_from_slice(&self.bytes[at..at + buf.len()]);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.call(Code::TargetWriteFailed)?;
        let granule = self.grain.unwrap_or(self.unit);
        assert!(
            offset.is_multiple_of(granule)
                && (bytes.len() as u64).is_multiple_of(granule)
                && !bytes.is_empty()
        );
        let mut stored = bytes.to_vec();
        match self.fault {
            Some(Fault::Corrupt(n)) if n == self.writes() => stored[0] ^= 1,
            Some(Fault::Worn(at)) if (offset..offset + bytes.len() as u64).contains(&at) => {
                stored[usize::try_from(at - offset).unwrap()] = 0x55;
            }
            _ => {}
        }
        self.log.push(Op::Write(offset, bytes.to_vec()));
        apply(&mut self.bytes, offset, &stored, self.grain.is_some());
        Ok(())
    }

    fn erase(&mut self, offset: u64) -> Result<()> {
        self.call(Code::TargetWriteFailed)?;
        assert!(offset.is_multiple_of(self.unit) && self.grain.is_some());
        self.log.push(Op::Erase(offset));
        let at = usize::try_from(offset).unwrap();
        self.bytes[at..at + usize::try_from(self.unit).unwrap()].fill(0xff);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.call(Code::TargetFlushFailed)?;
        self.log.push(Op::Flush);
        Ok(())
    }

    fn unlock(&mut self, range: Range<u64>) -> Result<()> {
        self.call(Code::TargetReadOnly)?;
        self.unlocked.push(range);
        Ok(())
    }

    fn relock(&mut self) {
        self.relocked += 1;
    }
}
