//! Complete reads and writes on a medium: short transfers are continued, `EINTR` is repeated, an `EIO` gets one more try.
//! A final error names the operation, the offset and the errno.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;

use crate::error::{Code, Error, Result};
use crate::sys::block::Medium;
use crate::sys::buffer::{Buffer, part, part_mut};

/// After so many interruptions in a row even `EINTR` is an error: no loop may run for ever.
const MAX_INTERRUPTIONS: u32 = 1000;

/// Transfers in a row that may end within the block in which they began.
const MAX_STALLS: u8 = 8;

/// The remedy where the file system of a plain file is full.
pub(crate) const FREE_SPACE: &str =
    "free space on the file system of the target, or use one that takes a file of this size";

pub struct Io<'a> {
    medium: &'a dyn Medium,
    name: &'a Path,
    retries: AtomicU64,
}

impl<'a> Io<'a> {
    #[must_use]
    pub fn new(medium: &'a dyn Medium, name: &'a Path) -> Self {
        Io { medium, name, retries: AtomicU64::new(0) }
    }

    /// Transfers are multiples of this; at least 1.
    #[must_use]
    pub fn block(&self) -> usize {
        self.medium.block_size().max(1)
    }

    #[must_use]
    pub fn name(&self) -> &'a Path {
        self.name
    }

    #[must_use]
    pub fn medium(&self) -> &'a dyn Medium {
        self.medium
    }

    #[must_use]
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    pub fn size(&self) -> Result<u64> {
        match self.medium.size() {
            // A disk has no medium, or was pulled. A plain file may be empty.
            Ok(0) if self.medium.block_size() > 1 => Err(self.ended("use", None)),
            other => other.map_err(|e| self.failure(Code::TargetReadFailed, "read the size of", None, e)),
        }
    }

    pub fn extend(&self, len: u64) -> Result<()> {
        self.medium.extend(len).map_err(|e| self.failure(Code::TargetWriteFailed, "extend", None, e))
    }

    /// The length of `buf` and `offset` are multiples of the block size.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len();
        self.transfer(Code::TargetReadFailed, "read", len, offset, |done, at| {
            self.medium.read_at(part_mut(buf, done..)?, at)
        })
    }

    pub fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.transfer(Code::TargetWriteFailed, "write", buf.len(), offset, |done, at| {
            self.medium.write_at(part(buf, done..)?, at)
        })
    }

    /// Reads at any offset. `buffer` grows to hold all blocks concerned.
    pub(crate) fn read_any<'b>(&self, buffer: &'b mut Buffer, offset: u64, len: u64) -> Result<&'b [u8]> {
        let outer = outward(&(offset..offset + len), self.block() as u64);
        let whole = usize::try_from(outer.end - outer.start).map_err(Error::internal)?;
        if buffer.len() < whole {
            *buffer = Buffer::zeroed(whole);
        }
        self.read(part_mut(buffer, ..whole).map_err(Error::internal)?, outer.start)?;
        let skip = usize::try_from(offset - outer.start).map_err(Error::internal)?;
        let len = usize::try_from(len).map_err(Error::internal)?;
        part(buffer, skip..skip + len).map_err(Error::internal)
    }

    /// Writes at any offset: blocks that are only partly covered are read, merged and written.
    pub(crate) fn write_any(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let block = self.block();
        let outer = outward(&(offset..offset + bytes.len() as u64), block as u64);
        let mut buf = Buffer::zeroed(usize::try_from(outer.end - outer.start).map_err(Error::internal)?);
        let skip = usize::try_from(offset - outer.start).map_err(Error::internal)?;
        let last = buf.len().saturating_sub(block);
        let partial_last = skip + bytes.len() < buf.len();
        if skip > 0 || (partial_last && last == 0) {
            self.read(part_mut(&mut buf, ..block).map_err(Error::internal)?, outer.start)?;
        }
        if partial_last && last > 0 {
            self.read(part_mut(&mut buf, last..).map_err(Error::internal)?, outer.start + last as u64)?;
        }
        part_mut(&mut buf, skip..skip + bytes.len()).map_err(Error::internal)?.copy_from_slice(bytes);
        self.write(&buf, outer.start)
    }

    pub fn flush(&self) -> Result<()> {
        // No second try: after a failed flush the kernel forgets which pages were not written.
        self.medium.flush().map_err(|e| self.failure(Code::TargetFlushFailed, "flush", None, e))
    }

    pub fn drop_cache(&self) -> Result<()> {
        self.medium.drop_cache().map_err(|e| self.failure(Code::Io, "drop the cache of", None, e))
    }

    /// Repeats `op` once after an `EIO`, and up to [`MAX_INTERRUPTIONS`] times after `EINTR`.
    fn retrying<T>(&self, mut op: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let (mut interruptions, mut eio) = (0, false);
        loop {
            match op() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted && interruptions < MAX_INTERRUPTIONS => {
                    interruptions += 1;
                }
                Err(e) if is_media_error(&e) && !eio => {
                    eio = true;
                    self.retries.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!("input/output error on {}, trying once more", self.name.display());
                }
                other => return other,
            }
        }
    }

    fn transfer(
        &self,
        code: Code,
        what: &str,
        len: usize,
        offset: u64,
        mut op: impl FnMut(usize, u64) -> io::Result<usize>,
    ) -> Result<()> {
        let (mut done, mut stalls) = (0usize, 0u8);
        while done < len {
            let at = offset + done as u64;
            let before = done;
            match self.retrying(|| op(done, at)) {
                Ok(0) => return Err(self.ended(what, Some(at))),
                Ok(n) => done = self.continue_at(done, n, len),
                Err(e) => return Err(self.failure(code, what, Some(at), e)),
            }
            stalls = if done == before { stalls + 1 } else { 0 };
            if stalls == MAX_STALLS {
                let cause = io::Error::other("the device transfers less than one block at a time");
                return Err(self.failure(code, what, Some(at), cause));
            }
        }
        Ok(())
    }

    fn continue_at(&self, done: usize, n: usize, len: usize) -> usize {
        let now = done.saturating_add(n).min(len);
        if now == len { now } else { now - now % self.block() }
    }

    fn ended(&self, what: &str, at: Option<u64>) -> Error {
        let name = self.name.display();
        let why = match self.medium.size() {
            Ok(0) | Err(_) => "it has gone".to_owned(),
            Ok(size) => format!("it ends there now, at {size} bytes"),
        };
        Error::new(Code::TargetVanished, format!("cannot {what} {name}{}: {why}", place(at))).object(name)
    }

    fn failure(&self, code: Code, what: &str, at: Option<u64>, cause: io::Error) -> Error {
        let name = self.name.display();
        let code_of_os = cause.raw_os_error();
        let is_disk = self.medium.block_size() > 1;
        let left = self.medium.size().unwrap_or(u64::MAX);
        // A disk is full at its end (a thin volume also elsewhere).
        if is_disk && code_of_os == Some(libc::ENOSPC) && left <= at.unwrap_or(0) {
            return self.ended(what, at);
        }
        let gone = matches!(code_of_os, Some(libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM))
            // A pulled stick or card returns EIO, and has no size any more.
            || (is_disk && code_of_os == Some(libc::EIO) && left == 0);
        let full = !is_disk && matches!(code_of_os, Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
        let (code, end) = if gone { (Code::TargetVanished, ": it has gone") } else { (code, "") };
        let message = format!("cannot {what} {name}{}{end}", place(at));
        let e = Error::new(code, message).object(name).because(cause);
        if full { e.with_hint(FREE_SPACE) } else { e }
    }
}

fn place(at: Option<u64>) -> String {
    at.map(|at| format!(" at byte {at}")).unwrap_or_default()
}

/// Linux reports a failing medium or connection with these errors (`blk_errors` in block/blk-core.c).
fn is_media_error(e: &io::Error) -> bool {
    let again = [libc::EIO, libc::ENODATA, libc::ETIMEDOUT, libc::ENOLINK, libc::EREMOTEIO, libc::EILSEQ];
    e.raw_os_error().is_some_and(|code| again.contains(&code))
}

#[must_use]
fn outward(range: &Range<u64>, block: u64) -> Range<u64> {
    let block = block.max(1);
    range.start - range.start % block..range.end.next_multiple_of(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Memory with 512-byte blocks that answers from a script first.
    struct Scripted {
        data: Mutex<Vec<u8>>,
        answers: Mutex<Vec<Result<usize, i32>>>,
    }

    impl Scripted {
        fn new(len: usize, mut answers: Vec<Result<usize, i32>>) -> Self {
            answers.reverse();
            Scripted { data: Mutex::new(vec![7; len]), answers: Mutex::new(answers) }
        }

        fn limit(&self, len: usize) -> io::Result<usize> {
            match self.answers.lock().unwrap().pop() {
                Some(Ok(n)) => Ok(n.min(len)),
                Some(Err(e)) => Err(io::Error::from_raw_os_error(e)),
                None => Ok(len),
            }
        }
    }

    impl Medium for Scripted {
        fn size(&self) -> io::Result<u64> {
            Ok(self.data.lock().unwrap().len() as u64)
        }
        fn block_size(&self) -> usize {
            512
        }
        fn extend(&self, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            assert!(offset.is_multiple_of(512) && buf.len().is_multiple_of(512));
            let data = self.data.lock().unwrap();
            let at = usize::try_from(offset).unwrap().min(data.len());
            let n = self.limit(buf.len().min(data.len() - at))?;
            buf[..n].copy_from_slice(&data[at..at + n]);
            Ok(n)
        }
        fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
            assert!(offset.is_multiple_of(512) && buf.len().is_multiple_of(512));
            let mut data = self.data.lock().unwrap();
            let at = usize::try_from(offset).unwrap().min(data.len());
            let n = self.limit(buf.len().min(data.len() - at))?;
            data[at..at + n].copy_from_slice(&buf[..n]);
            Ok(n)
        }
        fn zero_range(&self, _: u64, _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
        fn drop_cache(&self) -> io::Result<()> {
            Ok(())
        }
        fn is_direct(&self) -> bool {
            true
        }
    }

    fn io(medium: &Scripted) -> Io<'_> {
        Io::new(medium, Path::new("/dev/disk"))
    }

    #[test]
    fn short_and_interrupted_transfers_are_continued_on_block_boundaries() {
        let script = || vec![Err(libc::EINTR), Ok(700), Ok(512), Err(libc::EINTR), Ok(100), Ok(1024)];
        let m = Scripted::new(4096, script());
        let mut buf = vec![0; 4096];
        io(&m).read(&mut buf, 0).unwrap();
        assert_eq!(buf, vec![7; 4096]);
        let m = Scripted::new(4096, script());
        io(&m).write(&vec![9; 4096], 0).unwrap();
        assert_eq!(*m.data.lock().unwrap(), vec![9; 4096]);
    }

    #[test]
    fn one_eio_is_repeated_a_second_one_is_not() {
        let m = Scripted::new(1024, vec![Err(libc::EIO)]);
        let target = io(&m);
        target.write(&[1; 512], 512).unwrap();
        assert_eq!(target.retries(), 1);
        let m = Scripted::new(1024, vec![Err(libc::EIO), Err(libc::EIO)]);
        let e = io(&m).write(&[1; 512], 512).unwrap_err();
        assert_eq!(e.code(), Code::TargetWriteFailed);
        assert!(e.message().contains("/dev/disk at byte 512"), "{e}");
        assert_eq!(e.subject(), Some("/dev/disk"));
        assert!(e.message().contains("os error 5"), "{e}");
    }

    #[test]
    fn a_medium_that_ends_early_or_goes_is_named_as_such() {
        let m = Scripted::new(1024, vec![]);
        assert_eq!(io(&m).read(&mut [0; 2048], 0).unwrap_err().code(), Code::TargetVanished);
        let m = Scripted::new(1024, vec![Err(libc::ENXIO)]);
        let e = io(&m).write(&[0; 512], 0).unwrap_err();
        assert_eq!(e.code(), Code::TargetVanished);
        for answers in [vec![Err(libc::EIO), Err(libc::EIO)], vec![Err(libc::ENOSPC)], vec![]] {
            let e = io(&Scripted::new(0, answers)).write(&[0; 512], 0).unwrap_err();
            assert_eq!(e.code(), Code::TargetVanished);
            assert!(e.message().contains("it has gone"), "{e}");
        }
        for (at, code) in [(0, Code::TargetWriteFailed), (1024, Code::TargetVanished)] {
            let e = io(&Scripted::new(1024, vec![Err(libc::ENOSPC)])).write(&[0; 512], at).unwrap_err();
            assert_eq!(e.code(), code, "{at}");
        }
    }

    #[test]
    fn no_answer_makes_it_spin_for_ever() {
        let m = Scripted::new(1024, vec![Err(libc::EINTR); 2000]);
        assert!(io(&m).write(&[0; 512], 0).is_err());
        let m = Scripted::new(4096, vec![Ok(100); 100]);
        assert!(io(&m).write(&[0; 1024], 0).is_err());
    }

    #[test]
    fn merging_keeps_every_byte_around() {
        for (offset, len) in
            [(0usize, 10usize), (5, 10), (500, 30), (511, 1026), (512, 512), (100, 412), (1000, 1)]
        {
            let m = Scripted::new(4096, vec![]);
            let mut want = vec![7; 4096];
            want[offset..offset + len].fill(3);
            io(&m).write_any(&vec![3; len], offset as u64).unwrap();
            assert_eq!(*m.data.lock().unwrap(), want, "{offset} {len}");
        }
    }
}
