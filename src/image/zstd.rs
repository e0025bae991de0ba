//! zstd frames. structured-zstd decodes one frame; this file finds the frames and checks each one's size and checksum.

use std::io::{BufRead, Read};

use structured_zstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::stored::Stored;
use super::unpack::{Fault, Unpack};
use crate::sys::buffer::part;

/// Little-endian (RFC 8878, 3.1.1).
const MAGIC: u32 = 0xfd2f_b528;

/// With the magic number (RFC 8878, 3.1.1.1).
const MAX_HEADER: usize = 18;

/// RFC 8878, 3.1.1.1.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    /// With the magic number.
    len: usize,
    window: u64,
    content_size: Option<u64>,
    dictionary: u32,
    reserved: bool,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let descriptor = *bytes.get(4)?;
        let single_segment = descriptor & 0x20 != 0;
        let mut at = 5;
        let mut field = |len: usize| -> Option<u64> {
            let raw = bytes.get(at..at + len)?;
            at += len;
            Some(raw.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        };
        let mut window = 0;
        if !single_segment {
            let byte = field(1)?;
            let base = 1u64 << (10 + (byte >> 3));
            window = base + base / 8 * (byte & 7);
        }
        let dictionary = field([0, 1, 2, 4].get(usize::from(descriptor & 3)).copied()?)?;
        let content_size = match (descriptor >> 6, single_segment) {
            (0, false) => None,
            (0, true) => Some(field(1)?),
            (1, _) => Some(field(2)? + 256),
            (2, _) => Some(field(4)?),
            _ => Some(field(8)?),
        };
        if single_segment {
            window = content_size.unwrap_or(0);
        }
        let dictionary = u32::try_from(dictionary).ok()?;
        Some(Header { len: at, window, content_size, dictionary, reserved: descriptor & 8 != 0 })
    }
}

struct Frame {
    content_size: Option<u64>,
    delivered: u64,
}

pub(super) struct Zstd {
    stored: Stored,
    decoder: FrameDecoder,
    window: u64,
    frame: Option<Frame>,
}

impl Zstd {
    pub(super) fn new(stored: Stored, window: u64) -> Self {
        Zstd { stored, decoder: FrameDecoder::new(), window, frame: None }
    }

    fn begin(&mut self) -> Result<Option<Frame>, Fault> {
        loop {
            let bytes = self.stored.peek(MAX_HEADER)?;
            let magic = match bytes {
                [] => return Ok(None),
                [a, b, c, d, ..] => u32::from_le_bytes([*a, *b, *c, *d]),
                _ => return Err(Fault::damaged("bytes that are not zstd data follow its end")),
            };
            if magic & 0xffff_fff0 == 0x184d_2a50 {
                self.skip()?;
                continue;
            }
            if magic != MAGIC {
                return Err(Fault::damaged("bytes that are not zstd data follow its end"));
            }
            let header = Header::parse(bytes).ok_or_else(|| Fault::damaged("the file ends too early"))?;
            return self.init(&header).map(Some);
        }
    }

    fn skip(&mut self) -> Result<(), Fault> {
        let mut head = [0; 8];
        self.stored.read_exact(&mut head)?;
        let [.., a, b, c, d] = head;
        let mut left = u64::from(u32::from_le_bytes([a, b, c, d]));
        while left > 0 {
            let here = self.stored.fill_buf()?.len();
            if here == 0 {
                return Err(Fault::damaged("the file ends too early"));
            }
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(here);
            self.stored.consume(step);
            left -= step as u64;
        }
        Ok(())
    }

    fn init(&mut self, header: &Header) -> Result<Frame, Fault> {
        if header.window > self.window {
            return Err(Fault::Window);
        }
        if header.dictionary != 0 {
            return Err(Fault::Unsupported(format!("it needs zstd dictionary {}", header.dictionary)));
        }
        if header.reserved {
            return Err(Fault::Unsupported("a reserved bit is set in a zstd frame header".into()));
        }
        let bytes = part(self.stored.peek(header.len)?, ..header.len)?;
        self.decoder.init(bytes).map_err(Fault::damaged)?;
        self.stored.consume(header.len);
        Ok(Frame { content_size: header.content_size, delivered: 0 })
    }

    /// Checks the size and the checksum of a finished frame. The decoder computes the checksum but compares nothing.
    fn check(&self, frame: &Frame) -> Result<(), Fault> {
        if frame.content_size.is_some_and(|declared| declared != frame.delivered) {
            return Err(Fault::damaged("a zstd frame does not have the size that it declares"));
        }
        match self.decoder.get_checksum_from_data() {
            Some(stored) if self.decoder.get_calculated_checksum() != Some(stored) => {
                Err(Fault::damaged("the checksum of a zstd frame does not match"))
            }
            _ => Ok(()),
        }
    }
}

impl Unpack for Zstd {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, Fault> {
        loop {
            let Some(frame) = &mut self.frame else {
                match self.begin()? {
                    Some(frame) => self.frame = Some(frame),
                    None => return Ok(0),
                }
                continue;
            };
            if self.decoder.can_collect() > 0 {
                let n = self.decoder.read(buf)?;
                frame.delivered += n as u64;
                return Ok(n);
            }
            if self.decoder.is_finished() {
                if let Some(frame) = self.frame.take() {
                    self.check(&frame)?;
                }
                continue;
            }
            // One block, 128 KiB at most, so that only the window and one block are in memory.
            self.decoder
                .decode_blocks(&mut self.stored, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(Fault::damaged)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        // Window descriptor 0x80: 2^26 bytes; no content size.
        let h = Header::parse(&[0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x80]).unwrap();
        assert_eq!(
            h,
            Header { len: 6, window: 64 << 20, content_size: None, dictionary: 0, reserved: false }
        );
        // Mantissa: 2^10 * (1 + 7/8).
        assert_eq!(Header::parse(&[0x28, 0xb5, 0x2f, 0xfd, 0, 7]).unwrap().window, 1920);
        // Single segment, two bytes of size, one of dictionary.
        let h = Header::parse(&[0x28, 0xb5, 0x2f, 0xfd, 0x61, 9, 1, 1]).unwrap();
        assert_eq!(
            h,
            Header { len: 8, window: 513, content_size: Some(513), dictionary: 9, reserved: false }
        );
        assert_eq!(Header::parse(&[0x28, 0xb5, 0x2f, 0xfd, 0xc0, 1, 2, 3]), None);
    }
}
