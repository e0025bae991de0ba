use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::decode::{Decoded, MAX_WINDOW};
use super::raw::Raw;
use super::stored::{Stored, Watch};
use super::{Format, Image, Surroundings, owner};
use crate::error::{Code, Error, Result};
use crate::image::chunks::{Piece, Source};
use crate::sys::file::Version;

/// First bytes of each format. gzip: RFC 1952; xz: its file format, 2.1.1.1; zstd: RFC 8878, 3.1. bzip2 is below.
const SUPPORTED: &[(&[u8], Format)] = &[
    (&[0x1f, 0x8b], Format::Gzip),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], Format::Xz),
    (&[0x28, 0xb5, 0x2f, 0xfd], Format::Zstd),
];

const UNSUPPORTED: &[(&[u8], &str)] = &[
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (&[0x04, 0x22, 0x4d, 0x18], "lz4"),
    (&[0x02, 0x21, 0x4c, 0x18], "lz4 (old frames)"),
    (b"LZIP\x01", "lzip"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
];

/// Block magic numbers of bzip2 after `BZh` and a digit: a block, and the end of an empty file.
const BZIP2: [[u8; 6]; 2] = [*b"\x31\x41\x59\x26\x53\x59", *b"\x17\x72\x45\x38\x50\x90"];

/// A source; for compressed images also how far the stored file was read.
pub(super) type Watched = (Box<dyn Source>, Option<Arc<Watch>>);

impl Image {
    pub fn open(path: impl Into<PathBuf>) -> Result<Image> {
        Self::open_in(path.into(), Surroundings::Any)
    }

    /// Opens a file that the caller has named.
    pub(crate) fn open_named(path: &Path) -> Result<Image> {
        let image = Self::open(path)?;
        owner::warn_of_foreign(path, &image.file.metadata().map_err(|e| unreadable(path, e))?);
        Ok(image)
    }

    /// Opens a file that was found below `top`, a folder where every user may put files. Follows no links.
    pub(super) fn open_below(top: &Path, path: PathBuf) -> Result<Image> {
        owner::check_folders(top, &path)?;
        Self::open_in(path, Surroundings::Shared)
    }

    fn open_in(path: PathBuf, surroundings: Surroundings) -> Result<Image> {
        let file = open_regular(&path, surroundings).map_err(|why| match why {
            NotOpened::Kind(what) => {
                let text = format!("image {} is {what}", path.display());
                Error::new(Code::ImageNotRegular, text).object(path.display())
            }
            NotOpened::Untrusted(e) => e,
            NotOpened::Io(e) => unreadable(&path, e),
        })?;
        let version = Version::of(&file).map_err(|e| unreadable(&path, e))?;
        if version.size == 0 {
            let text = format!("image {} is empty", path.display());
            return Err(Error::new(Code::ImageEmpty, text).object(path.display()));
        }
        let mut head = [0; 16];
        let n = read_head(&file, &mut head).map_err(|e| unreadable(&path, e))?;
        let format = format_of(head.split_at(n).0).map_err(|what| {
            let text = format!("image {} is compressed with {what}", path.display());
            let error = Error::new(Code::UnsupportedCompression, text).object(path.display());
            error.with_hint("unpack it first, or compress it with gzip, xz, zstd or bzip2")
        })?;
        let file = Arc::new(file);
        Ok(Image { path, format, stored_size: version.size, version, surroundings, window: MAX_WINDOW, file })
    }

    #[must_use]
    pub(crate) fn with_window(mut self, bytes: u64) -> Image {
        self.window = bytes;
        self
    }

    /// The uncompressed image. The file must not have changed since it was opened: that is checked now, at the end, and at each error.
    pub fn source(&self) -> Result<Box<dyn Source>> {
        Ok(self.watched_source()?.0)
    }

    pub(super) fn watched_source(&self) -> Result<Watched> {
        let stored = self.stored()?;
        let decoded = Decoded::new(stored, self.format, self.path.clone(), self.window);
        let watch = decoded.as_ref().map(Decoded::watch);
        let source: Box<dyn Source> = match decoded {
            Some(decoded) => Box::new(decoded),
            None => Box::new(Raw::new(self.clone())),
        };
        Ok((Box::new(Unchanged { source, image: self.clone() }), watch))
    }

    /// Refuses a file that another program has changed since it was opened. Every pass over the image begins and ends with it: what a pass
    /// reads may be written to a disk, and must be what an earlier pass has checked.
    pub(crate) fn refuse_changed(&self) -> Result<()> {
        let now = Version::of(&self.file).map_err(|e| unreadable(&self.path, e))?;
        if now == self.version {
            return Ok(());
        }
        let (path, before) = (self.path.display(), self.stored_size);
        let text = if now.size == before {
            format!("image {path} was modified while it was read")
        } else {
            format!("image {path} changed from {before} to {} bytes while it was read", now.size)
        };
        Err(Error::new(Code::ImageChanged, text).object(path))
    }

    pub(super) fn read_stored(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    /// The file as it is stored. The caller calls [`Image::refuse_changed`] when it has read all of it.
    pub(crate) fn stored(&self) -> Result<Stored> {
        self.refuse_changed()?;
        Ok(Stored::new(Arc::clone(&self.file), self.stored_size))
    }
}

/// A source that ends with an error if its file has changed in the meantime, whatever the change has made of its content.
struct Unchanged {
    source: Box<dyn Source>,
    image: Image,
}

impl Source for Unchanged {
    fn next(&mut self, buf: &mut [u8]) -> Result<Piece> {
        let next = self.source.next(buf);
        if matches!(next, Ok(Piece::End) | Err(_)) {
            self.image.refuse_changed()?;
        }
        next
    }
}

/// Why an image or one of its companions was not opened.
pub(super) enum NotOpened {
    /// Not a regular file; the file type, for the message.
    Kind(&'static str),
    Untrusted(Error),
    Io(io::Error),
}

pub(super) fn open_regular(path: &Path, surroundings: Surroundings) -> Result<File, NotOpened> {
    let (before, links) = match surroundings {
        Surroundings::Any => (std::fs::metadata(path), 0),
        Surroundings::Shared => (std::fs::symlink_metadata(path), nix::libc::O_NOFOLLOW),
    };
    // Checked before opening as well: opening a device can have effects (a tape rewinds, a watchdog starts).
    regular(before.map_err(NotOpened::Io)?.file_type())?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY | links)
        .open(path)
        .map_err(NotOpened::Io)?;
    let meta = file.metadata().map_err(NotOpened::Io)?;
    regular(meta.file_type())?;
    if surroundings == Surroundings::Shared {
        owner::check_file(path, &meta).map_err(NotOpened::Untrusted)?;
    }
    Ok(file)
}

fn regular(kind: FileType) -> Result<(), NotOpened> {
    Err(NotOpened::Kind(match kind {
        k if k.is_file() => return Ok(()),
        k if k.is_dir() => "a folder",
        k if k.is_symlink() => "a symbolic link",
        k if k.is_fifo() => "a FIFO",
        k if k.is_socket() => "a socket",
        k if k.is_block_device() => "a block device",
        k if k.is_char_device() => "a character device",
        _ => "not a regular file",
    }))
}

pub(super) fn unreadable(path: &Path, e: io::Error) -> Error {
    let code = match e.kind() {
        io::ErrorKind::NotFound => Code::ImageMissing,
        io::ErrorKind::PermissionDenied => Code::NotRoot,
        _ => Code::Io,
    };
    let path = path.display();
    Error::new(code, format!("cannot read image {path}")).object(path).because(e)
}

fn read_head(file: &File, head: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while let Some(space) = head.get_mut(n..).filter(|s| !s.is_empty()) {
        match file.read_at(space, n as u64) {
            Ok(0) => break,
            Ok(got) => n += got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

/// By the first 16 bytes of a file. The error is the name of an unsupported compression.
fn format_of(head: &[u8]) -> Result<Format, &'static str> {
    if let Some((_, format)) = SUPPORTED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Ok(*format);
    }
    // zstd's skippable frames (RFC 8878, 3.1.2) have sixteen magic numbers.
    if let [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] = head {
        return Ok(Format::Zstd);
    }
    if let Some((_, name)) = UNSUPPORTED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(name);
    }
    if let [b'B', b'Z', b'h', b'1'..=b'9', block @ ..] = head
        && BZIP2.iter().any(|magic| block.starts_with(magic))
    {
        return Ok(Format::Bzip2);
    }
    if is_lzma_alone(head) { Err("lzma (the format before xz)") } else { Ok(Format::Raw) }
}

/// The old format has no magic number. xz writes: properties 5d, a dictionary of 2^n bytes, the size unknown or below
/// 256 GiB, and a range coder that always starts with a zero byte (xz, doc/lzma-file-format.txt).
fn is_lzma_alone(head: &[u8]) -> bool {
    let [0x5d, d0, d1, d2, d3, size @ .., _, _] = head else { return false };
    let [s0, s1, s2, s3, s4, s5, s6, s7, 0] = *size else { return false };
    let dictionary = u32::from_le_bytes([*d0, *d1, *d2, *d3]);
    let size = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    dictionary.is_power_of_two() && dictionary >= 4096 && (size == u64::MAX || (1..1 << 38).contains(&size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_by_first_bytes() {
        assert_eq!(format_of(&[0x1f, 0x8b]), Ok(Format::Gzip));
        assert_eq!(format_of(b"\xfd7zXZ\0\0\x04"), Ok(Format::Xz));
        assert_eq!(format_of(&[0x28, 0xb5, 0x2f, 0xfd, 4]), Ok(Format::Zstd));
        assert_eq!(format_of(&[0x5e, 0x2a, 0x4d, 0x18, 0]), Ok(Format::Zstd));
        assert_eq!(format_of(b"BZh91AY&SY"), Ok(Format::Bzip2));
        assert_eq!(format_of(b"BZh9 is how this boot code starts"), Ok(Format::Raw));
        assert_eq!(format_of(b"PK\x03\x04"), Err("zip"));
        assert_eq!(format_of(&[0]), Ok(Format::Raw));
        assert_eq!(format_of(&[]), Ok(Format::Raw));
        let mut lzma = *b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff\0\x10\x20";
        assert!(format_of(&lzma).is_err());
        lzma[13] = 1;
        assert_eq!(format_of(&lzma), Ok(Format::Raw));
    }
}
