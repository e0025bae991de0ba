//! The image file as stored, read from start to end without keeping it in memory.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::sys::buffer::{part, part_mut};

const READ_BYTES: usize = 256 << 10;

/// The page cache is released in steps of this many bytes, one step after the reader: often enough to stay small, rarely
/// enough to cost nothing.
const RELEASE_BYTES: u64 = 4 << 20;

/// Releases the page cache of what was read.
///
/// Otherwise a device with 256 MiB of memory would evict its running programs for an image that is read once. A file that
/// fits in a quarter of the memory stays: a compressed image is read twice, and the second time then needs no slow stick.
pub(super) struct DropBehind {
    file: Arc<File>,
    given_back: u64,
    active: bool,
}

impl DropBehind {
    pub(super) fn new(file: Arc<File>, size: u64) -> Self {
        // A failure costs only speed.
        if let Err(e) = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL) {
            tracing::debug!("no sequential read-ahead: {e}");
        }
        let memory = nix::sys::sysinfo::sysinfo().map_or(0, |s| s.ram_total());
        DropBehind { file, given_back: 0, active: size > memory / 4 }
    }

    pub(super) fn passed(&mut self, position: u64) {
        let until = position.saturating_sub(RELEASE_BYTES);
        if !self.active || until < self.given_back.saturating_add(RELEASE_BYTES) {
            return;
        }
        let range = (self.given_back.try_into(), (until - self.given_back).try_into());
        if let (Ok(from), Ok(len)) = range {
            let advice = PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            self.active = posix_fadvise(&self.file, from, len, advice).is_ok();
        }
        self.given_back = until;
    }
}

#[derive(Default)]
pub(super) struct Watch {
    position: AtomicU64,
    errno: AtomicI32,
}

impl Watch {
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// The error of the operating system that ended the reading. Decoders wrap or replace it.
    pub(super) fn os_error(&self) -> Option<io::Error> {
        match self.errno.load(Ordering::Relaxed) {
            0 => None,
            e => Some(io::Error::from_raw_os_error(e)),
        }
    }
}

pub(crate) struct Stored {
    file: Arc<File>,
    size: u64,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
    cache: DropBehind,
    watch: Arc<Watch>,
}

impl Stored {
    /// Reads `size` bytes of `file`: bytes that are appended later are ignored.
    pub(super) fn new(file: Arc<File>, size: u64) -> Self {
        Stored {
            cache: DropBehind::new(Arc::clone(&file), size),
            file,
            size,
            buffer: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            offset: 0,
            watch: Arc::default(),
        }
    }

    pub(super) fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Makes at least `n` bytes (at most [`READ_BYTES`]) available without consuming them; fewer only at the end of the file.
    pub(super) fn peek(&mut self, n: usize) -> io::Result<&[u8]> {
        if self.end - self.start < n {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            while self.end < n && self.refill()? > 0 {}
        }
        part(&self.buffer, self.start..self.end)
    }

    fn refill(&mut self) -> io::Result<usize> {
        let left = usize::try_from(self.size - self.offset).unwrap_or(usize::MAX);
        let space = part_mut(&mut self.buffer, self.end..)?;
        let len = space.len().min(left);
        let space = part_mut(space, ..len)?;
        let n = loop {
            match self.file.read_at(space, self.offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.watch.errno.store(e.raw_os_error().unwrap_or(nix::libc::EIO), Ordering::Relaxed);
                    return Err(e);
                }
                Ok(n) => break n,
            }
        };
        self.end += n;
        self.offset += n as u64;
        self.cache.passed(self.offset);
        Ok(n)
    }
}

impl BufRead for Stored {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.peek(1)
    }

    fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        self.watch.position.store(self.offset - (self.end - self.start) as u64, Ordering::Relaxed);
    }
}

impl Read for Stored {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.fill_buf()?.read(buf)?;
        self.consume(n);
        Ok(n)
    }
}
