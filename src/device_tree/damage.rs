//! Damaged trees: with one, or with a damaged overlay, a bootloader may stop.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::blob::Blob;
use super::carry::MAX_TREE_BYTES;
use super::{Named, content};
use crate::config::paths::Paths;
use crate::error::{Code, Error};
use crate::sys::file;

/// What is wrong with the tree in `file`, if the bootloader takes it.
pub(crate) fn damage(named: &Named, file: &Path) -> Option<Error> {
    let why = match file::read_bytes(file, MAX_TREE_BYTES) {
        Ok(bytes) => Blob::check(&bytes).err()?.to_owned(),
        Err(e) => e.to_string(),
    };
    let text = format!("cannot boot with {}, which {} names: {why}", file.display(), named.key);
    named.counts.then(|| Error::new(Code::DeviceTreeInvalid, text).object(named.path.display()))
}

/// Whether the running system has booted with the content of `file`: it had it in the place `before`, and it has not changed there since.
pub(super) fn has_booted(paths: &Paths, file: &Path, before: &Path) -> bool {
    let same = || Some(content(file).ok()? == content(before).ok()?);
    let unchanged = || {
        let meta = fs::metadata(before).ok()?;
        Some(meta.mtime().max(meta.ctime()) < boot_time(paths)?)
    };
    same().unwrap_or(false) && unchanged().unwrap_or(false)
}

/// In seconds since 1970, by the present clock.
fn boot_time(paths: &Paths) -> Option<i64> {
    let stat = file::read_bytes(&paths.at("/proc/stat"), 16 << 20).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}
