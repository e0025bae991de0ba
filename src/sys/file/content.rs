use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    Bytes(&'a [u8]),
    /// Bytes, and the permissions of a created file (without the process's mask), where the file system has any.
    BytesAs(&'a [u8], u32),
    /// A regular file, read from its start.
    File(&'a File),
}

pub(super) const STEP: usize = 256 << 10;

impl Content<'_> {
    pub fn size(&self) -> io::Result<u64> {
        match self {
            Content::Bytes(bytes) | Content::BytesAs(bytes, _) => {
                Ok(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            Content::File(file) => Ok(file.metadata()?.len()),
        }
    }

    /// Permissions of a created file: as the source, if that is a file.
    pub(super) fn mode(&self) -> io::Result<u32> {
        match self {
            Content::Bytes(_) => Ok(0o644),
            Content::BytesAs(_, mode) => Ok(mode & 0o7777),
            Content::File(file) => Ok(file.metadata()?.mode() & 0o777),
        }
    }

    pub(super) fn fill(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Content::Bytes(bytes) | Content::BytesAs(bytes, _) => {
                let rest =
                    usize::try_from(offset).ok().and_then(|from| bytes.get(from..)).unwrap_or_default();
                let n = rest.len().min(buf.len());
                if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
                    to.copy_from_slice(from);
                }
                Ok(n)
            }
            Content::File(file) => fill(file, buf, offset),
        }
    }
}

pub(super) fn fill(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = offset + u64::try_from(done).unwrap_or(u64::MAX);
        match file.read_at(rest, at) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}
