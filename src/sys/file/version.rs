//! Whether a file that is read more than once is still the same.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// Size and modification time of an open file. The time of its inode's last change does not count: rename, link and chmod set it.
///
/// Linux sets the modification time to that of its last clock tick, at most 10 ms ago: two writes within a tick look like one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) size: u64,
    modified: (i64, i64),
}

impl Version {
    pub(crate) fn of(file: &File) -> io::Result<Version> {
        let meta = file.metadata()?;
        Ok(Version { size: meta.len(), modified: (meta.mtime(), meta.mtime_nsec()) })
    }
}
