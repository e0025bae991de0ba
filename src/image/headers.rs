//! What headers say that are found in a stream, which is read once.

use super::Image;
use super::pass::heed_signals;
use super::sparse::Sparse;
use crate::disk::partition::{Flaw, ReadAt};
use crate::error::{Error, Result};
use crate::image::chunks::{Extent, Piece};
use crate::image::digest::CHUNK_LEN;
use crate::sys::buffer::{Buffer, part};

/// Headers that lie before what refers to them cost another pass over a compressed image.
pub(super) const MORE_PASSES: u32 = 4;

/// A function of the bytes that are there and of the size, where that is known; and whether the result stays, whatever comes.
type Look<'a, T> = Box<dyn FnMut(&mut ReadAt<'_>, Option<u64>) -> (Result<T, Flaw>, bool) + Send + 'a>;

pub(super) struct Headers<'a, T> {
    pub(super) sparse: Sparse,
    look: Look<'a, T>,
    pub(super) result: Result<T, Flaw>,
    pub(super) settled: bool,
}

impl<'a, T> Headers<'a, T> {
    pub(super) fn new(look: Look<'a, T>) -> Self {
        let mut headers =
            Headers { sparse: Sparse::default(), look, result: Err(Flaw::Pending), settled: false };
        headers.run();
        headers
    }

    fn run(&mut self) {
        let Headers { sparse, look, .. } = self;
        let size = sparse.size();
        (self.result, self.settled) = look(&mut |offset, buf| sparse.read_at(offset, buf), size);
    }

    /// Whether there was something in the piece that it has waited for.
    pub(super) fn see(&mut self, extent: &Extent<'_>) -> Result<bool> {
        let mut news = false;
        while !self.settled && self.sparse.take(extent).map_err(Error::internal)? {
            self.run();
            news = true;
        }
        Ok(news)
    }

    pub(super) fn ended(&mut self, size: u64) {
        self.sparse.ended(size);
        self.run();
    }

    /// Reads the image again for what a pass has left open.
    pub(super) fn finish(&mut self, image: &Image) -> Result<()> {
        for _ in 0..MORE_PASSES {
            if self.settled {
                break;
            }
            tracing::debug!("another pass over {} for its headers", image.path.display());
            self.walk(image, |headers, position| {
                headers.settled || position > headers.sparse.last_requested().unwrap_or(0)
            })?;
        }
        if !self.settled {
            self.result = Err(Flaw::Pending);
        }
        Ok(())
    }

    /// Reads the image from its beginning; `enough` gets how far that has come, in bytes.
    pub(super) fn walk(
        &mut self,
        image: &Image,
        enough: impl Fn(&Headers<'a, T>, u64) -> bool,
    ) -> Result<()> {
        let mut source = image.source()?;
        let mut buffer = Buffer::zeroed(CHUNK_LEN);
        let mut position = 0;
        while !enough(self, position) {
            heed_signals(image)?;
            let (extent, len) = match source.next(&mut buffer)? {
                Piece::End => {
                    self.ended(position);
                    break;
                }
                Piece::Zero(len) => (Extent::Zero { offset: position, len }, len),
                Piece::Data(n) => {
                    let bytes = part(&buffer, ..n).map_err(Error::internal)?;
                    (Extent::Data { offset: position, bytes }, n as u64)
                }
            };
            self.see(&extent)?;
            position += len;
        }
        Ok(())
    }
}
