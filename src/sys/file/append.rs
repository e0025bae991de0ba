//! Appends to a file of lines, for records that must be written without space for a second copy.

use std::ffi::OsStr;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use super::at;
use super::folder::Folder;

/// Appends `line`, which ends with a newline, to an existing file. It is on the medium when this returns. A power cut leaves a
/// part of it, or zeroes, at the end of the file; the next line then starts after a newline.
pub fn append(folder: &Folder, name: &OsStr, line: &[u8]) -> io::Result<()> {
    let mut file = at(folder.open_to_append(name), "open", name)?;
    let mut last = [0];
    let torn = match file.seek(SeekFrom::End(-1)) {
        Ok(_) => at(file.read_exact(&mut last), "read", name).map(|()| last != *b"\n")?,
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => false,
        Err(e) => return at(Err(e), "read", name),
    };
    // One write, because another process may also append.
    let whole = [if torn { &b"\n"[..] } else { b"" }, line].concat();
    at(file.write_all(&whole), "append to", name)?;
    at(file.sync_all(), "sync", name)
}

/// Allocates space for the first `size` bytes of a file, whose length stays. Does nothing where the file system cannot do that.
pub(crate) fn reserve(folder: &Folder, name: &OsStr, size: usize) -> io::Result<()> {
    let file = at(folder.open_to_append(name), "open", name)?;
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    match fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, size) {
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        result => at(result.map_err(io::Error::from), "allocate space for", name)
            .and_then(|()| at(file.sync_all(), "sync", name)),
    }
}

/// The last `most` bytes of a file; `None` where it does not exist.
pub fn tail(folder: &Folder, name: &OsStr, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut file = match folder.open_file(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => at(opened, "open", name)?,
    };
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let from = file.metadata()?.len().saturating_sub(most);
    let mut bytes = Vec::new();
    at(file.seek(SeekFrom::Start(from)).and_then(|_| file.take(most).read_to_end(&mut bytes)), "read", name)?;
    Ok(Some(bytes))
}
