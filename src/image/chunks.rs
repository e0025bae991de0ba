//! One pass over an image with several threads: read and decode in order, work on the chunks side by side.
//!
//! The threads share one source, protected by a lock. A thread takes the next piece into its own buffer under the lock,
//! and works on it (digest, compare, write) after it has released the lock. So one thread reads and decodes while others
//! digest and write. Memory is one buffer for each thread, and no queue has to be bounded.

use std::ops::Range;
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::digest::CHUNK_LEN;
use crate::error::{Error, Result};
use crate::sys::buffer::{Buffer, part};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// The buffer has this many bytes: all of it, except at the end of the image.
    Data(usize),
    /// Zero bytes that were not read. A multiple of [`CHUNK`](super::digest::CHUNK), except at the end of the image.
    Zero(u64),
    End,
}

pub trait Source: Send {
    /// `buf` is not empty. A caller that counts in chunks passes [`CHUNK_LEN`] bytes.
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece>;
}

#[derive(Debug)]
pub enum Extent<'a> {
    Data {
        offset: u64,
        bytes: &'a [u8],
    },
    /// Whole chunks of zeroes that were not read; less only at the end of the image.
    Zero {
        offset: u64,
        len: u64,
    },
}

impl Extent<'_> {
    #[must_use]
    pub fn end(&self) -> u64 {
        match self {
            Extent::Data { offset, bytes } => offset + bytes.len() as u64,
            Extent::Zero { offset, len } => offset + len,
        }
    }
}

/// A part of the image, in memory; `None` if the image ends before it, or if it has more than `most` bytes.
pub(crate) fn read_range(source: &mut dyn Source, range: &Range<u64>, most: u64) -> Result<Option<Vec<u8>>> {
    let len = range.end.saturating_sub(range.start);
    if len > most {
        return Ok(None);
    }
    let mut buffer = Buffer::zeroed(CHUNK_LEN);
    let (mut at, mut out) = (0, Vec::new());
    while at < range.end {
        let (piece, data) = match source.next(&mut buffer)? {
            Piece::Data(n) => (n as u64, true),
            Piece::Zero(n) => (n, false),
            Piece::End => return Ok(None),
        };
        let (start, end) = (range.start.max(at), range.end.min(at + piece));
        if let (Ok(from), Ok(len)) =
            (usize::try_from(start.saturating_sub(at)), usize::try_from(end.saturating_sub(start)))
        {
            match buffer.get(from..from + len).filter(|_| data) {
                Some(bytes) => out.extend(bytes),
                None => out.resize(out.len() + len, 0),
            }
        }
        at += piece;
    }
    Ok(Some(out))
}

/// Threads of a pass: one may block in a write, one digests, one decodes; more where there are more processors. Each
/// takes one or two chunks of memory.
#[must_use]
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).clamp(1, 4) + 1
}

/// Runs one pass from the start of `source` and returns the image's size in bytes.
///
/// `in_order` sees every piece in the order of the image, one at a time. `each` sees every piece on any thread, in any
/// order, with that thread's own state from `state`.
pub fn pass<S>(
    source: &mut dyn Source,
    workers: usize,
    in_order: &mut (dyn FnMut(&Extent<'_>) -> Result<()> + Send),
    state: &(dyn Fn() -> S + Sync),
    each: &(dyn Fn(&mut S, &Extent<'_>) -> Result<()> + Sync),
) -> Result<u64> {
    struct Shared<'a> {
        source: &'a mut dyn Source,
        in_order: &'a mut (dyn FnMut(&Extent<'_>) -> Result<()> + Send),
        position: u64,
        ended: bool,
    }
    let shared = Mutex::new(Shared { source, in_order, position: 0, ended: false });

    side_by_side(workers, &|failed| {
        let mut buffer = Buffer::zeroed(CHUNK_LEN);
        let mut state = state();
        loop {
            let mut s = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if s.ended || failed.load(Ordering::Acquire) {
                return Ok(());
            }
            let offset = s.position;
            // A failure under the lock ends the pass before the lock is released: no other thread may take the next piece with a
            // wrong position.
            let piece = match s.source.next(&mut buffer) {
                Ok(piece) => piece,
                Err(e) => {
                    s.ended = true;
                    return Err(e);
                }
            };
            let extent = match piece {
                Piece::End => {
                    s.ended = true;
                    return Ok(());
                }
                Piece::Zero(len) => Extent::Zero { offset, len },
                Piece::Data(n) => match part(&buffer, ..n) {
                    Ok(bytes) => Extent::Data { offset, bytes },
                    Err(e) => {
                        s.ended = true;
                        return Err(Error::internal(e));
                    }
                },
            };
            if let Err(e) = (s.in_order)(&extent) {
                s.ended = true;
                return Err(e);
            }
            s.position = extent.end();
            drop(s);
            each(&mut state, &extent)?;
        }
    })?;
    Ok(shared.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).position)
}

/// Runs `work` in the calling thread, and in others beside it, `workers` in all. Where the system has no more threads to give
/// (`TasksMax=`, a `pids` cgroup), those that are there do everything. Each `work` takes its share until nothing is left, and ends
/// when its argument says that another one has failed. Returns the first error.
pub(crate) fn side_by_side(workers: usize, work: &(dyn Fn(&AtomicBool) -> Result<()> + Sync)) -> Result<()> {
    let failed = AtomicBool::new(false);
    let first_error = Mutex::new(None);
    let run = || {
        if let Err(e) = work(&failed) {
            failed.store(true, Ordering::Release);
            first_error.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(e);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workers {
            if let Err(e) = std::thread::Builder::new().spawn_scoped(scope, run) {
                tracing::debug!("no more threads: {e}");
                break;
            }
        }
        run();
    });
    first_error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};
    use std::sync::atomic::AtomicU64;

    struct Count(u8, u8);
    impl Source for Count {
        fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
            if self.0 == self.1 {
                return Ok(Piece::End);
            }
            self.0 += 1;
            if self.0.is_multiple_of(3) {
                return Ok(Piece::Zero(2 * CHUNK_LEN as u64));
            }
            buf.fill(self.0);
            Ok(Piece::Data(if self.0 == self.1 { 10 } else { buf.len() }))
        }
    }

    #[test]
    fn every_piece_is_seen_once_and_in_order() {
        let seen = AtomicU64::new(0);
        let mut order = Vec::new();
        let size = pass(
            &mut Count(0, 50),
            4,
            &mut |e| {
                order.push(match e {
                    Extent::Data { offset, .. } | Extent::Zero { offset, .. } => *offset,
                });
                Ok(())
            },
            &|| (),
            &|(), e| {
                let n = match e {
                    Extent::Data { bytes, .. } => {
                        assert!(bytes.iter().all(|b| *b == bytes[0]));
                        bytes.len() as u64
                    }
                    Extent::Zero { len, .. } => *len,
                };
                seen.fetch_add(n, Ordering::Relaxed);
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(size, seen.into_inner());
        assert_eq!(size, (33 + 32) * CHUNK_LEN as u64 + 10);
        assert!(order.is_sorted());
        assert_eq!(order.len(), 50);
    }

    #[test]
    fn the_first_error_ends_the_pass() {
        let e = pass(&mut Count(0, 50), 3, &mut |_| Ok(()), &|| (), &|(), e| match e {
            Extent::Data { offset, .. } if *offset > 0 => Err(Error::new(Code::Io, "boom")),
            _ => Ok(()),
        })
        .unwrap_err();
        assert_eq!(e.code(), Code::Io);
    }
}
