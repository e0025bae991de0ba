//! Flushes the drive below a file system.
//!
//! On vfat neither `sync(2)` nor `umount(2)` sends the drive a cache flush; `fsync(2)` of the block device does, on every kernel.
//! (`fat_file_fsync` flushes only since Linux 5.2, and before that too early: ahead of the table.)

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::sys::block::major_minor;

#[derive(Debug)]
pub(super) enum Drive {
    Node(File),
    /// None that could or must be flushed: memory, a network, btrfs (whose `fsync` flushes all of its devices).
    Anonymous,
    /// Not looked for: the folder is open to read.
    Unneeded,
}

impl Drive {
    pub(super) fn of(dev: u64) -> io::Result<Drive> {
        if major_minor(dev).0 == 0 {
            return Ok(Drive::Anonymous);
        }
        for path in candidates(dev) {
            if let Ok(file) = open(&path)
                && file.metadata()?.rdev() == dev
            {
                return Ok(Drive::Node(file));
            }
        }
        let (major, minor) = major_minor(dev);
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "no node in /dev for the device {major}:{minor} below the file system, so it cannot be flushed"
            ),
        ))
    }

    pub(super) fn node(self) -> Option<File> {
        if let Drive::Node(file) = self { Some(file) } else { None }
    }

    pub(super) fn boot_sector(&self) -> Option<io::Result<[u8; 512]>> {
        let Drive::Node(file) = self else { return None };
        let mut sector = [0; 512];
        Some(std::os::unix::fs::FileExt::read_exact_at(file, &mut sector, 0).map(|()| sector))
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        match self {
            Drive::Node(file) => file.sync_all(),
            Drive::Anonymous => Ok(()),
            Drive::Unneeded => Err(io::Error::other("the folder is open to read, not to write")),
        }
    }
}

/// udev makes `/dev/block`; without udev (initramfs) the kernel's device name leads to the node of devtmpfs.
fn candidates(dev: u64) -> Vec<PathBuf> {
    let (major, minor) = major_minor(dev);
    let mut found = vec![PathBuf::from(format!("/dev/block/{major}:{minor}"))];
    let uevent = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).unwrap_or_default();
    if let Some(name) = uevent.lines().find_map(|l| l.strip_prefix("DEVNAME=")) {
        found.push(Path::new("/dev").join(name));
    }
    let mounts = crate::sys::mount::read_mounts(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    found.extend(mounts.into_iter().filter(|m| m.dev == (major, minor)).map(|m| PathBuf::from(m.source)));
    found
}

/// Read-only is enough for `fsync`, and closing such a descriptor makes udev probe nothing.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.file_type().is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a block device"));
    }
    Ok(file)
}

/// Writes back a whole file system, and flushes the drive below it. (Before Linux 5.8 `syncfs(2)` hides write-back errors; the
/// flush of the node reports those of the block layer.)
pub(crate) fn sync_file_system(path: &Path) -> io::Result<()> {
    let folder = File::open(path)?;
    nix::unistd::syncfs(&folder)?;
    match Drive::of(folder.metadata()?.dev()) {
        Ok(drive) => drive.flush(),
        // In a container; with a journal, `syncfs` has flushed the drive already.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

/// Writes back the kernel's pages of a block device, and flushes the drive's cache.
pub(crate) fn flush_node(node: &Path) -> io::Result<()> {
    open(node)?.sync_all()
}
