//! A disk in memory, with a volatile cache in front, that can be told to misbehave.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use copal::sys::block::Medium;

/// Which call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    Size,
    Read,
    Write,
    Zero,
    Flush,
    DropCache,
}

/// How a call misbehaves.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Fails with this errno.
    Errno(i32),
    /// Transfers only this many bytes.
    Short(usize),
    /// The device has shrunk to this many bytes, for good.
    Shrink(usize),
}

type Hook = Box<dyn FnMut(&mut State, Call, u64) -> Option<Fault> + Send>;

#[derive(Default)]
pub struct State {
    /// What is on the medium.
    pub durable: Vec<u8>,
    /// What was written since the last flush, by block.
    pub pending: BTreeMap<usize, Vec<u8>>,
    pub calls: BTreeMap<Call, u64>,
    pub bytes_written: u64,
    /// The block at this offset cannot be written.
    pub unwritable: Option<u64>,
    /// Flushes that succeeded.
    pub flushed: u64,
    /// Every write in order: offset, length, and how many flushes came before.
    pub log: Vec<(u64, usize, u64)>,
}

impl State {
    pub fn settle(&mut self) {
        for (at, data) in std::mem::take(&mut self.pending) {
            if at + data.len() <= self.durable.len() {
                self.durable[at..at + data.len()].copy_from_slice(&data);
            }
        }
    }
}

pub struct Disk {
    pub block: usize,
    /// Can zero ranges by itself.
    pub zeroes: bool,
    pub state: Mutex<State>,
    hook: Mutex<Option<Hook>>,
}

impl Disk {
    pub fn filled(len: usize, byte: u8) -> Self {
        Disk::holding(vec![byte; len])
    }

    pub fn holding(durable: Vec<u8>) -> Self {
        let state = State { durable, ..State::default() };
        Disk { block: 512, zeroes: true, state: Mutex::new(state), hook: Mutex::new(None) }
    }

    pub fn len(&self) -> u64 {
        self.state.lock().unwrap().durable.len() as u64
    }

    /// Asks `hook` at every call whether it misbehaves.
    pub fn on_call(&self, hook: impl FnMut(&mut State, Call, u64) -> Option<Fault> + Send + 'static) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    /// Every write over the block at `offset` fails, now and later.
    pub fn fail_writes_over(&self, offset: u64) {
        self.state.lock().unwrap().unwritable = Some(offset);
    }

    pub fn behave(&self) {
        *self.hook.lock().unwrap() = None;
    }

    /// What would be there after a power cut that lost everything not flushed.
    pub fn durable(&self) -> Vec<u8> {
        self.state.lock().unwrap().durable.clone()
    }

    fn enter(&self, call: Call, offset: u64) -> io::Result<(std::sync::MutexGuard<'_, State>, usize)> {
        let mut state = self.state.lock().unwrap();
        *state.calls.entry(call).or_default() += 1;
        let mut limit = usize::MAX;
        if let Some(hook) = &mut *self.hook.lock().unwrap() {
            match hook(&mut state, call, offset) {
                Some(Fault::Errno(e)) => return Err(io::Error::from_raw_os_error(e)),
                Some(Fault::Short(n)) => limit = n,
                Some(Fault::Shrink(n)) => state.durable.truncate(n),
                None => {}
            }
        }
        Ok((state, limit))
    }
}

impl Medium for Disk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.enter(Call::Size, 0)?.0.durable.len() as u64)
    }

    fn block_size(&self) -> usize {
        self.block
    }

    fn extend(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let at = offset as usize;
        assert!(at.is_multiple_of(self.block) && buf.len().is_multiple_of(self.block), "unaligned read");
        let (state, limit) = self.enter(Call::Read, offset)?;
        let n = buf.len().min(limit).min(state.durable.len().saturating_sub(at));
        if n == 0 {
            return Ok(0);
        }
        buf[..n].copy_from_slice(&state.durable[at..at + n]);
        for (i, block) in buf[..n].chunks_mut(self.block).enumerate() {
            if let Some(p) = state.pending.get(&(at + i * self.block)) {
                block.copy_from_slice(&p[..block.len()]);
            }
        }
        Ok(n)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let at = offset as usize;
        assert!(at.is_multiple_of(self.block) && buf.len().is_multiple_of(self.block), "unaligned write");
        let (mut state, limit) = self.enter(Call::Write, offset)?;
        let n = buf.len().min(limit).min(state.durable.len().saturating_sub(at));
        if state.unwritable.is_some_and(|bad| (offset..offset + n as u64).contains(&bad)) {
            return Err(io::Error::from_raw_os_error(nix::libc::EIO));
        }
        // A torn block stays as it was.
        for (i, block) in buf[..n - n % self.block].chunks(self.block).enumerate() {
            state.pending.insert(at + i * self.block, block.to_vec());
        }
        state.bytes_written += n as u64;
        let flushes = state.calls.get(&Call::Flush).copied().unwrap_or(0);
        state.log.push((offset, n, flushes));
        Ok(n)
    }

    fn zero_range(&self, offset: u64, len: u64) -> io::Result<()> {
        let (mut state, _) = self.enter(Call::Zero, offset)?;
        if !self.zeroes {
            return Err(io::Error::from_raw_os_error(nix::libc::EOPNOTSUPP));
        }
        let (at, len) = (offset as usize, len as usize);
        assert!(at.is_multiple_of(4096) && len.is_multiple_of(4096), "unaligned zeroing");
        for i in (at..at + len).step_by(self.block) {
            state.pending.insert(i, vec![0; self.block]);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let (mut state, _) = self.enter(Call::Flush, 0)?;
        state.settle();
        state.flushed += 1;
        Ok(())
    }

    fn drop_cache(&self) -> io::Result<()> {
        self.enter(Call::DropCache, 0).map(|_| ())
    }

    fn is_direct(&self) -> bool {
        true
    }
}
