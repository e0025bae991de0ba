use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::sync::Arc;

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::GzDecoder;
use lzma_rust2::XzReader;

use super::Format;
use super::stored::{Stored, Watch};
use super::unpack::{Fault, Unpack};
use super::zstd::Zstd;
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Piece, Source};

/// Largest window (dictionary) of a decoder: 64 MiB, as `xz -9` and `zstd --long=26` use it. More does not fit into a
/// device with 256 MiB of memory.
pub(super) const MAX_WINDOW: u64 = 64 << 20;

pub(super) struct Decoded {
    unpack: Box<dyn Unpack>,
    watch: Arc<Watch>,
    path: PathBuf,
    window: u64,
    over: bool,
}

impl Decoded {
    /// `None` for a format that is not compressed. `window` is the largest one that is allowed, in bytes; gzip and bzip2 have
    /// small ones.
    pub(super) fn new(stored: Stored, format: Format, path: PathBuf, window: u64) -> Option<Self> {
        let watch = stored.watch();
        let unpack: Box<dyn Unpack> = match format {
            Format::Raw => return None,
            Format::Gzip => Box::new(Gzip(Some(GzDecoder::new(stored)))),
            Format::Xz => Box::new(xz(stored, window)),
            Format::Zstd => Box::new(Zstd::new(stored, window)),
            Format::Bzip2 => Box::new(Complete(MultiBzDecoder::new(stored))),
        };
        Some(Decoded { unpack, watch, path, window, over: false })
    }

    pub(super) fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    fn error(&self, fault: Fault) -> Error {
        let path = self.path.display();
        let at = self.watch.position();
        if let Some(e) = self.watch.os_error() {
            let text = format!("cannot read image {path} near byte {at}");
            return Error::new(Code::Io, text).object(path).because(e);
        }
        let (code, text) = match fault {
            Fault::Damaged(why) => {
                (Code::ImageDamaged, format!("image {path} is damaged near byte {at} of the file: {why}"))
            }
            Fault::Window => (
                Code::WindowTooLarge,
                format!("image {path} needs a decoder window of more than {} MiB", self.window >> 20),
            ),
            Fault::Unsupported(what) => {
                (Code::UnsupportedCompression, format!("image {path} cannot be decoded: {what}"))
            }
        };
        Error::new(code, text).object(path)
    }
}

impl Source for Decoded {
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
        let mut filled = 0;
        while !self.over {
            let Some(space) = buf.get_mut(filled..).filter(|s| !s.is_empty()) else { break };
            match self.unpack.read(space) {
                Ok(0) => self.over = true,
                Ok(n) => filled += n,
                Err(fault) => {
                    self.over = true;
                    return Err(self.error(fault));
                }
            }
        }
        Ok(if filled == 0 { Piece::End } else { Piece::Data(filled) })
    }
}

/// gzip members, one after the other. flate2's own member loop accepts no padding, and does not distinguish bytes after
/// the end from a damaged member.
struct Gzip(Option<GzDecoder<Stored>>);

impl Unpack for Gzip {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Fault> {
        while let Some(decoder) = &mut self.0 {
            let n = decoder.read(buf)?;
            if n > 0 {
                return Ok(n);
            }
            let Some(mut stored) = self.0.take().map(GzDecoder::into_inner) else { break };
            match stored.peek(2)? {
                [] => {}
                [0x1f, 0x8b, ..] => self.0 = Some(GzDecoder::new(stored)),
                _ => only_zeroes(&mut stored)?,
            }
        }
        Ok(0)
    }
}

/// Zeroes after the last gzip member pad the file to a block size. gzip accepts them silently.
fn only_zeroes(stored: &mut Stored) -> Result<(), Fault> {
    loop {
        let bytes = stored.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let zeroes = bytes.iter().take_while(|b| **b == 0).count();
        let all = zeroes == bytes.len();
        stored.consume(zeroes);
        if !all {
            return Err(Fault::damaged("bytes that are not gzip data follow its end"));
        }
    }
}

fn xz(stored: Stored, window: u64) -> Complete<XzReader<Stored>> {
    // The decoder uses 104 KiB and the dictionary.
    let limit = u32::try_from(window >> 10).unwrap_or(u32::MAX).saturating_add(128);
    Complete(XzReader::new_mem_limit(stored, true, limit))
}

/// A decoder that reads every stream of the file, and accepts nothing else after them.
struct Complete<R>(R);

impl<R: Read + Send> Unpack for Complete<R> {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Fault> {
        Ok(self.0.read(buf)?)
    }
}
