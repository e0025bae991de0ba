//! Mounting the internal boot partition where plug-ins and board programs look for it.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;

use crate::error::{Code, Error, Result};
use crate::sys::block::major_minor;
use crate::sys::{file, mount};

/// Where it is mounted: board programs and plug-ins have this path written in them.
pub const POINT: &str = "/tmp/internal_boot";

/// The first is what every image has; the second is what an encrypted disk gets.
const FILE_SYSTEMS: &[&str] = &["vfat", "ext4"];

/// A program that has just looked at the partition lets go of it soon, and a partition that udev has shown anew is back soon.
const TIMEOUT: Duration = Duration::from_secs(10);

const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// The mounted internal boot partition. It stays mounted until [`unmount`](Self::unmount): a failed run that cannot clean up
/// must not pretend that it did.
#[derive(Debug)]
pub struct BootPartition {
    node: PathBuf,
    point: PathBuf,
}

impl BootPartition {
    /// Mounts the partition `node` for reading and writing at `point` ([`POINT`] below the root), which is made where it is
    /// missing, in the mount namespace of this process. A mount of the same partition that an earlier run left there is
    /// unmounted first.
    ///
    /// # Errors
    /// `BootMountFailed`: also when something else is mounted there, or `point` is a link or somebody else's folder.
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
        clear(&point, major_minor(meta.rdev())).map_err(|e| fail("something is mounted there", e))?;
        let fstype = when_there(|| mount::mount_any(node, &point, FILE_SYSTEMS))
            .map_err(|e| fail("mount(2) refuses", e))?;
        tracing::info!("{} is mounted at {} as {fstype}", node.display(), point.display());
        Ok(BootPartition { node: node.to_owned(), point })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Unmounts it, waiting up to ten seconds for programs that still use it, and flushes the drive: on vfat, unmounting alone
    /// leaves what was written in the drive's cache.
    ///
    /// # Errors
    /// `BootUnmountFailed`, which names the programs.
    pub fn unmount(self) -> Result<()> {
        let fail = |what: String, e: io::Error| {
            Error::new(Code::BootUnmountFailed, what).object(self.node.display()).because(e).after_write()
        };
        if let Err(e) = mount::unmount(&self.point, TIMEOUT) {
            let users = mount::users(&self.point);
            let by = if users.is_empty() { String::new() } else { format!(", used by {}", users.join(", ")) };
            return Err(fail(format!("cannot unmount {}{by}", self.point.display()), e));
        }
        file::flush_node(&self.node).map_err(|e| fail(format!("cannot flush {}", self.node.display()), e))
    }
}

/// The folder itself, made where it is missing; its path without links, as the mount table has it.
fn own_folder(point: &Path) -> io::Result<PathBuf> {
    match fs::DirBuilder::new().mode(0o755).create(point) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let meta = fs::symlink_metadata(point)?;
    // `/tmp` is everybody's: whoever owns the folder, or the link, decides what is written where.
    if !meta.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder, or a link to one"));
    }
    if meta.uid() != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to somebody else"));
    }
    let name = point.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(fs::canonicalize(point.parent().unwrap_or(Path::new("/")))?.join(name))
}

/// Unmounts what an earlier run left at `point`, if it is the same device.
fn clear(point: &Path, dev: (u32, u32)) -> io::Result<()> {
    while let Some(there) =
        mount::read_mounts(Path::new(MOUNT_TABLE))?.into_iter().rfind(|m| m.point == point)
    {
        if there.dev != dev {
            let source = there.source.to_string_lossy().into_owned();
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, source));
        }
        tracing::warn!("{} is still mounted from an earlier run; unmounting it", point.display());
        mount::unmount(point, TIMEOUT)?;
    }
    Ok(())
}

/// Does it again for a while where udev may be at work: it probes new partitions, and has the kernel take those of a disk away
/// and show them again once somebody has written to it.
fn when_there<T>(job: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let passes = |e: &io::Error| {
        e.kind() == io::ErrorKind::ResourceBusy
            || matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENXIO))
    };
    let end = std::time::Instant::now() + TIMEOUT;
    loop {
        match job() {
            Err(e) if passes(&e) && std::time::Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(100));
            }
            other => return other,
        }
    }
}
