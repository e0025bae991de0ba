use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::error::{Code, Error, Result};
use crate::sys::file;

/// Deeper folders are refused, so that every walk ends.
const MAX_DEPTH: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) path: PathBuf,
    pub(super) size: u64,
}

/// Every regular file, sorted by path: the shell version took `find -type f`. A missing or unreadable folder is an error: no release
/// starts without boot files.
pub(super) fn list(source: &Path) -> Result<Vec<Listed>> {
    let mut found = Vec::new();
    walk(source, Path::new(""), 0, &mut found)?;
    found.sort_by(|a, b| a.path.as_os_str().cmp(b.path.as_os_str()));
    Ok(found)
}

fn walk(source: &Path, below: &Path, depth: usize, found: &mut Vec<Listed>) -> Result<()> {
    let folder = source.join(below);
    if depth > MAX_DEPTH {
        return Err(unreadable(&folder, io::Error::other(format!("more than {MAX_DEPTH} folders deep"))));
    }
    let entries = fs::read_dir(&folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|e| unreadable(&folder, e))?;
    let names: BTreeSet<_> = entries.iter().map(fs::DirEntry::file_name).collect();
    for entry in &entries {
        let name = &entry.file_name();
        let path = below.join(name);
        let meta = entry.metadata().map_err(|e| unreadable(&entry.path(), e))?;
        if meta.is_dir() {
            walk(source, &path, depth + 1, found)?;
        } else if !meta.is_file() {
            tracing::debug!("{} is not a regular file and is not deployed", entry.path().display());
        } else if is_passing(name, |other| names.contains(other)) {
            tracing::warn!("{} is left over from an interrupted write and is not deployed", path.display());
        } else {
            found.push(Listed { path, size: meta.len() });
        }
    }
    Ok(())
}

/// Temporary files of interrupted writes, and side files. `is_beside`: whether its folder also has this name.
pub(super) fn is_passing(name: &OsStr, is_beside: impl FnMut(&OsStr) -> bool) -> bool {
    file::is_temporary(name) || file::owners(name).any(is_beside) || is_orphan(name)
}

/// A side file of `fatrw` without its file: `.NAME.RANDOM.MD5.md5sum`.
fn is_orphan(name: &OsStr) -> bool {
    let Some(text) = name.to_str() else { return false };
    let Some(own) = text.rsplitn(4, '.').nth(3).and_then(|n| n.strip_prefix('.')) else { return false };
    let hex = |part: Option<&str>| part.is_some_and(|p| p.bytes().all(|b| b.is_ascii_hexdigit()));
    let mut parts = text.rsplit('.').skip(1);
    hex(parts.next()) && hex(parts.next()) && file::is_side_file(name, OsStr::new(own))
}

pub(super) fn open(path: &Path) -> Result<File> {
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    let file =
        OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|e| unreadable(path, e))?;
    match file.metadata() {
        Ok(meta) if meta.is_file() => Ok(file),
        Ok(_) => Err(unreadable(path, io::Error::other("no longer a file"))),
        Err(e) => Err(unreadable(path, e)),
    }
}

fn unreadable(path: &Path, e: io::Error) -> Error {
    Error::new(
        Code::BootFilesInvalid,
        format!("cannot read the boot files of the release in {}", path.display()),
    )
    .object(path.display())
    .because(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_is_distinguished_from_files() {
        const HASH: &str = "0123456789abcdef0123456789abcdef";
        let passing = |name: &str| is_passing(OsStr::new(name), |other| other == "beside.txt");
        assert!(passing("CPL0A0B1.TMP"));
        assert!(passing(&format!(".gone.txt.12ab34cd.{HASH}.md5sum")));
        assert!(passing(".beside.txt.cut.tmp"));
        for name in ["beside.txt", "x.md5sum", ".x.tmp", "a.b.c.d.tmp", ".hidden"] {
            assert!(!passing(name), "{name}");
        }
    }
}
