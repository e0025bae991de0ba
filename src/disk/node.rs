use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::Dev;
use crate::config::paths::Paths;
use crate::sys::block::major_minor;

/// The kernel's own limit of symbolic links in one path (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// Follows all symbolic links of an absolute path; `/` means the root of `paths`. The last component need not exist.
pub(crate) fn resolve(paths: &Paths, path: &Path) -> io::Result<PathBuf> {
    let mut todo: VecDeque<OsString> = components(path);
    let mut done = PathBuf::from("/");
    let mut links = 0;
    while let Some(part) = todo.pop_front() {
        if part == ".." {
            done.pop();
            continue;
        }
        let here = done.join(&part);
        match fs::symlink_metadata(paths.at(&here)) {
            Ok(meta) if meta.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::from_raw_os_error(nix::libc::ELOOP));
                }
                let to = fs::read_link(paths.at(&here))?;
                if to.is_absolute() {
                    done = PathBuf::from("/");
                }
                let mut parts = components(&to);
                parts.append(&mut todo);
                todo = parts;
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound || !todo.is_empty() => return Err(e),
            Ok(_) | Err(_) => done = here,
        }
    }
    Ok(done)
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|c| match c {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

/// Below another root than `/` a regular file in `/dev` replaces the device of that name in sysfs: nodes need root's rights.
pub(super) fn dev_at(paths: &Paths, path: &Path, named: impl Fn(&str) -> Option<Dev>) -> Option<Dev> {
    let path = resolve(paths, path).ok()?;
    let meta = fs::symlink_metadata(paths.at(&path)).ok()?;
    if meta.file_type().is_block_device() {
        return Some(major_minor(meta.rdev()));
    }
    if paths.root() == Path::new("/") || !meta.is_file() {
        return None;
    }
    let name = path.strip_prefix("/dev").ok()?.to_str()?.replace('/', "!");
    named(&name)
}

/// Whether the kernel or another program holds a block device exclusively, in any mount namespace. `false` where unknown.
#[must_use]
pub(crate) fn claimed(node: &Path) -> bool {
    let is_block = fs::metadata(node).is_ok_and(|m| m.file_type().is_block_device());
    // Read-only: when a writable file is closed, udev probes the disk again.
    let busy = || {
        let open = OpenOptions::new().read(true).custom_flags(nix::libc::O_EXCL).open(node);
        open.is_err_and(|e| e.raw_os_error() == Some(nix::libc::EBUSY))
    };
    // Three attempts: a program that only probes the disk has finished by then.
    is_block
        && (0..3).all(|look| {
            std::thread::sleep(Duration::from_millis(50 * look));
            busy()
        })
}
