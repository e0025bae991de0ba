//! Reads a small text file of another program: never hangs, and never takes more memory than the limit.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::Code;
use crate::sys::file::open_regular;

#[derive(Debug)]
pub(super) enum Fault {
    Missing(io::Error),
    NotRegular,
    TooLarge(u64),
    Changed,
    Io(io::Error),
}

/// For a file that the kernel does not let this user read, or cannot read.
pub(super) fn io_code(e: &io::Error) -> Code {
    if e.kind() == io::ErrorKind::PermissionDenied { Code::NotRoot } else { Code::Io }
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::NotFound => Fault::Missing(e),
            _ => Fault::Io(e),
        }
    }
}

/// The whole file, if it is regular, has at most `limit` bytes, and did not change meanwhile.
pub(super) fn bounded(path: &Path, limit: u64) -> Result<Vec<u8>, Fault> {
    let mut file = open_regular(path).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Fault::NotRegular,
        _ => e.into(),
    })?;
    let before = file.metadata()?;
    let bytes = read_at_most(&mut file, limit)?;
    let after = file.metadata()?;
    if stamp(&before) != stamp(&after) || after.size() != u64::try_from(bytes.len()).unwrap_or(u64::MAX) {
        return Err(Fault::Changed);
    }
    Ok(bytes)
}

fn read_at_most(file: &mut File, limit: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(Fault::TooLarge(limit));
    }
    Ok(bytes)
}

fn stamp(meta: &Metadata) -> (u64, i64, i64) {
    (meta.size(), meta.mtime(), meta.mtime_nsec())
}

/// Line and column from 1. Columns count characters; a byte that is not UTF-8 counts as one.
pub(super) fn position(bytes: &[u8], offset: usize) -> (usize, usize) {
    let before = bytes.get(..offset).unwrap_or(bytes);
    let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
    let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
    let column = String::from_utf8_lossy(before.get(start..).unwrap_or_default()).chars().count() + 1;
    (line, column)
}

/// Shortens text from outside for a message, and removes control characters.
pub(super) fn shown(text: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 60;
    let mut short: String = text.chars().take(MAX_SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_folder_and_fifo_are_faults_not_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, b"12345").unwrap();
        assert_eq!(bounded(&file, 5).unwrap(), b"12345");
        assert!(matches!(bounded(&file, 4), Err(Fault::TooLarge(4))));
        assert!(matches!(bounded(dir.path(), 4), Err(Fault::NotRegular)));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(bounded(&fifo, 4), Err(Fault::NotRegular)));
        assert!(matches!(bounded(&dir.path().join("none"), 4), Err(Fault::Missing(_))));
    }

    #[test]
    fn positions_count_characters_from_one() {
        let text = "ä=1\nüü\0x".as_bytes();
        assert_eq!(position(text, 0), (1, 1));
        assert_eq!(position(text, 2), (1, 2));
        let nul = text.iter().position(|&b| b == 0).unwrap();
        assert_eq!(position(text, nul), (2, 3));
    }
}
