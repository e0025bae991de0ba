//! Mounts the internal boot partition where plug-ins and board programs expect it.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use crate::error::{Code, Error, Result};
use crate::sys::block::major_minor;
use crate::sys::{file, mount};

/// Board programs and plug-ins have this path hard-coded.
pub const POINT: &str = "/tmp/internal_boot";

/// Every image has the first; an encrypted disk gets the second.
const FILE_SYSTEMS: &[&str] = &["vfat", "ext4"];

/// For a program that has just read the partition to close it, and for udev to show the partition again.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// Stays mounted until [`unmount`](Self::unmount): a failed run that cannot clean up must not look as if it did.
#[derive(Debug)]
pub struct BootPartition {
    node: PathBuf,
    point: PathBuf,
}

impl BootPartition {
    /// Mounts the partition `node` read-write at `point` ([`POINT`] below the root), in the mount namespace of this process. Creates
    /// the folder. First unmounts the same partition where an earlier run left it.
    pub fn mount(node: &Path, point: &Path) -> Result<BootPartition> {
        let fail = |what: &str, e: io::Error| {
            let text = format!("cannot mount {} at {}: {what}", node.display(), point.display());
            Error::new(Code::BootMountFailed, text).object(node.display()).because(e).after_write()
        };
        let meta = when_there(|| fs::metadata(node)).map_err(|e| fail("no such device", e))?;
        if !meta.file_type().is_block_device() {
            return Err(fail("not a block device", io::ErrorKind::InvalidInput.into()));
        }
        let point = own_folder(point).map_err(|e| fail("the folder cannot be used", e))?;
        clear(&point, major_minor(meta.rdev())).map_err(|e| fail("another device is mounted there", e))?;
        let fstype = when_there(|| mount::mount_any(node, &point, FILE_SYSTEMS))
            .map_err(|e| fail("mount(2) refuses", e))?;
        tracing::info!("{} is mounted at {} as {fstype}", node.display(), point.display());
        Ok(BootPartition { node: node.to_owned(), point })
    }

    #[must_use]
    pub fn node(&self) -> &Path {
        &self.node
    }

    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Waits up to ten seconds for programs that use the partition, then flushes the drive: unmounting vfat leaves data in the drive's
    /// cache.
    pub fn unmount(self) -> Result<()> {
        let fail = |what: String, e: io::Error| {
            Error::new(Code::BootUnmountFailed, what).object(self.node.display()).because(e).after_write()
        };
        if let Err(e) = mount::unmount(&self.point, RELEASE_TIMEOUT) {
            let users = mount::users(&self.point);
            let by = if users.is_empty() { String::new() } else { format!(", used by {}", users.join(", ")) };
            return Err(fail(format!("cannot unmount {}{by}", self.point.display()), e));
        }
        file::flush_node(&self.node).map_err(|e| fail(format!("cannot flush {}", self.node.display()), e))
    }
}

/// Creates the folder where it is missing. Returns its path without links, as in the mount table.
fn own_folder(point: &Path) -> io::Result<PathBuf> {
    match fs::DirBuilder::new().mode(0o755).create(point) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let meta = fs::symlink_metadata(point)?;
    // Every user can write to `/tmp`: the owner of the folder, or of the link, decides what is written where.
    if !meta.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder, or a link to one"));
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    let name = point.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(fs::canonicalize(point.parent().unwrap_or(Path::new("/")))?.join(name))
}

/// Unmounts `dev` at `point`, where an earlier run left it.
fn clear(point: &Path, dev: (u32, u32)) -> io::Result<()> {
    while let Some(there) =
        mount::read_mounts(Path::new(MOUNT_TABLE))?.into_iter().rfind(|m| m.point == point)
    {
        if there.dev != dev {
            let source = there.source.to_string_lossy().into_owned();
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, source));
        }
        tracing::warn!("{} is still mounted from an earlier run; unmounting it", point.display());
        mount::unmount(point, RELEASE_TIMEOUT)?;
    }
    Ok(())
}

/// Repeats `job` for a while. udev probes new partitions, and after a write it has the kernel remove and add the partitions of a disk.
fn when_there<T>(job: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let passes = |e: &io::Error| {
        e.kind() == io::ErrorKind::ResourceBusy
            || matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENXIO))
    };
    let end = std::time::Instant::now() + RELEASE_TIMEOUT;
    loop {
        match job() {
            Err(e) if passes(&e) && std::time::Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(100));
            }
            other => return other,
        }
    }
}
