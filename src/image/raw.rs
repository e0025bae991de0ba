//! Raw images. Holes are known to be zero without reading them.

use std::io;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::unistd::{Whence, lseek64};

use super::Image;
use super::stored::DropBehind;
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Piece, Source};
use crate::image::digest::CHUNK;
use crate::sys::buffer::part_mut;

/// Bytes that are requested from the medium ahead of time. The kernel's own read-ahead is 128 KiB on most devices: the
/// medium would stand still while a chunk is processed.
const READ_AHEAD_BYTES: u64 = 4 << 20;

/// The longest hole that is given at once: what digests or skips it obeys a signal and shows progress between two of them.
const MOST_HOLE: u64 = 64 << 20;

pub(super) struct Raw {
    image: Image,
    size: u64,
    position: u64,
    data_until: u64,
    asked_until: u64,
    cache: DropBehind,
}

impl Raw {
    pub(super) fn new(image: Image) -> Self {
        let size = image.stored_size;
        let cache = DropBehind::new(Arc::clone(&image.file), size);
        Raw { image, size, position: 0, data_until: 0, asked_until: 0, cache }
    }

    /// Length of the hole at the position in whole chunks, or to the end; 0 where data comes first.
    fn hole(&mut self) -> Result<u64> {
        if self.position < self.data_until {
            return Ok(0);
        }
        let data = self.seek(self.position, Whence::SeekData)?;
        let len = if data >= self.size {
            self.size - self.position
        } else {
            (data - self.position) / CHUNK * CHUNK
        };
        let len = len.min(MOST_HOLE);
        if len == 0 {
            let hole = self.seek(data, Whence::SeekHole)?;
            // The chunk in which data ends is read in any case.
            self.data_until = hole.max(self.position.saturating_add(1));
        }
        Ok(len)
    }

    /// Start of the next data or hole from `from` on, at most the image's size.
    fn seek(&self, from: u64, whence: Whence) -> Result<u64> {
        let is_data = matches!(whence, Whence::SeekData);
        let at = i64::try_from(from).unwrap_or(i64::MAX);
        match lseek64(&self.image.file, at, whence) {
            Ok(found) => Ok(u64::try_from(found).unwrap_or(from).clamp(from, self.size)),
            // A hole up to the end, or nothing: another program has truncated the file.
            Err(Errno::ENXIO) => self.image.refuse_changed().map(|()| self.size),
            // A file system that does not report holes: everything is data.
            Err(Errno::EINVAL | Errno::ENOTSUP | Errno::ENOSYS) => Ok(if is_data { from } else { self.size }),
            Err(e) => Err(self.failed(from, e)),
        }
    }

    /// Keeps the medium busy while a chunk is processed. Holes are not read.
    fn ask_ahead(&mut self) {
        let from = self.asked_until.max(self.position);
        let until = self.position.saturating_add(READ_AHEAD_BYTES).min(self.data_until).min(self.size);
        let is_far_enough = from.saturating_sub(self.position) > READ_AHEAD_BYTES / 2;
        if is_far_enough || from >= until {
            return;
        }
        // A failure costs only speed.
        if let (Ok(start), Ok(len)) = (from.try_into(), (until - from).try_into())
            && let Err(e) =
                posix_fadvise(&self.image.file, start, len, PosixFadviseAdvice::POSIX_FADV_WILLNEED)
        {
            tracing::debug!("no read-ahead: {e}");
        }
        self.asked_until = until;
    }

    fn failed(&self, offset: u64, e: impl Into<io::Error>) -> Error {
        let path = self.image.path.display();
        Error::new(Code::Io, format!("cannot read image {path} at byte {offset}"))
            .object(path)
            .because(e.into())
    }
}

impl Source for Raw {
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
        if self.position >= self.size {
            return Ok(Piece::End);
        }
        let hole = self.hole()?;
        if hole > 0 {
            self.position += hole;
            return Ok(Piece::Zero(hole));
        }
        self.ask_ahead();
        let left = usize::try_from(self.size - self.position).unwrap_or(usize::MAX);
        let len = buf.len().min(left);
        let space = part_mut(buf, ..len).map_err(Error::internal)?;
        self.image.read_stored(self.position, space).map_err(|e| self.failed(self.position, e))?;
        self.position += len as u64;
        self.cache.passed(self.position);
        Ok(Piece::Data(len))
    }
}
