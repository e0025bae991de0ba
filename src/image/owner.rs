//! Whether a file below `/tmp` is root's alone.
//!
//! Every user may put files into `/tmp`, and copal finds the image there by its name: without these checks any user could
//! choose what is flashed. The file is checked after it is opened, so that no other file can take its place. The folders on
//! its path are checked first, from `/tmp` on: in a folder that passes, only root can rename what belongs to root.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::error::{Code, Error, Result};

/// `S_ISVTX`: only the owner of a file renames or removes it in this folder.
const STICKY: u32 = 0o1000;

/// `top` may be a link, the folders below it may not.
pub(super) fn check_folders(top: &Path, path: &Path) -> Result<()> {
    let mut folders: Vec<&Path> = path.ancestors().skip(1).take_while(|f| f.starts_with(top)).collect();
    folders.reverse();
    for folder in folders {
        let found = if folder == top { folder.metadata() } else { folder.symlink_metadata() };
        let meta = found.map_err(|e| untrusted(folder, "it cannot be read").because(e))?;
        if !meta.is_dir() {
            return Err(untrusted(folder, "it is no longer a folder"));
        }
        check_owner(folder, &meta)?;
        if meta.mode() & STICKY == 0 {
            check_mode(folder, &meta)?;
        }
    }
    Ok(())
}

/// For an image that was named, and so may be anybody's: a warning where its owner can change it while root writes it, from within a
/// folder where every user may put files.
pub(super) fn warn_of_foreign(path: &Path, meta: &Metadata) {
    const SHARED: u32 = STICKY | 0o002;
    let is_shared = |folder: &&Path| folder.metadata().is_ok_and(|m| m.mode() & SHARED == SHARED);
    let Ok(real) = path.canonicalize() else { return };
    if check_owner(path, meta).is_err()
        && let Some(folder) = real.ancestors().skip(1).find(is_shared)
    {
        tracing::warn!(
            "image {} belongs to user {}, who may change it at any time; every user may put files into {}",
            path.display(),
            meta.uid(),
            folder.display()
        );
    }
}

pub(super) fn check_file(path: &Path, meta: &Metadata) -> Result<()> {
    check_owner(path, meta)?;
    check_mode(path, meta)?;
    if meta.nlink() != 1 {
        return Err(untrusted(path, "it has a second name (a hard link), which another user may have made"));
    }
    Ok(())
}

/// A caller without root's rights may use its own files.
fn check_owner(path: &Path, meta: &Metadata) -> Result<()> {
    if meta.uid() == 0 || meta.uid() == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    Err(untrusted(path, &format!("it belongs to user {}, not to root", meta.uid())))
}

/// The group's bits also cover access control lists.
fn check_mode(path: &Path, meta: &Metadata) -> Result<()> {
    if meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(untrusted(
        path,
        &format!("users other than its owner may write to it (mode {:o})", meta.mode() & 0o7777),
    ))
}

fn untrusted(path: &Path, why: &str) -> Error {
    let path = path.display();
    Error::new(Code::ImageUntrusted, format!("{path} cannot be trusted: {why}")).object(path)
}
