//! Locks on disks and files that are to be written, and who holds them.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use nix::fcntl::{FlockArg, OFlag};
use nix::sys::stat::{major, minor};

/// A lock on a disk or a file that is written later. Meanwhile udev does not probe it, and no other copal writes it.
#[derive(Debug)]
pub(crate) struct Hold(File);

impl Hold {
    /// Fails as an exclusive open would while another program holds the disk or file. Opens for reading only: udev probes a disk again
    /// after it was open for writing.
    pub(crate) fn take(path: &Path, is_disk: bool) -> io::Result<Hold> {
        let open = |flags: OFlag| {
            OpenOptions::new().read(true).custom_flags((flags | OFlag::O_CLOEXEC).bits()).open(path)
        };
        let file = open(OFlag::empty())?;
        lock(&file)?;
        // Not kept: a look whether another program claims the disk would find this claim.
        if is_disk {
            drop(open(OFlag::O_EXCL)?);
        }
        Ok(Hold(file))
    }

    pub(super) fn is_of(&self, meta: &Metadata) -> io::Result<bool> {
        let own = self.0.metadata()?;
        Ok((own.dev(), own.ino(), own.rdev()) == (meta.dev(), meta.ino(), meta.rdev()))
    }
}

pub(super) fn lock(file: &File) -> nix::Result<()> {
    #[allow(deprecated)] // nix's replacement takes ownership of the file
    nix::fcntl::flock(file.as_raw_fd(), FlockArg::LockExclusiveNonblock)
}

/// The process that holds a lock on a disk or file, and its name, as the kernel lists it (proc(5), `/proc/locks`). `None` where it is of another
/// container, or gone.
pub(crate) fn lock_holder(path: &Path) -> Option<(u32, String)> {
    let meta = std::fs::metadata(path).ok()?;
    let inode = format!("{:02x}:{:02x}:{}", major(meta.dev()), minor(meta.dev()), meta.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let mut holders = locks.lines().filter_map(|line| {
        // Number, kind, mode, access, process, inode; a waiting one has `->` in the second place.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, at, ..] = words.as_slice() else { return None };
        pid.parse::<u32>().ok().filter(|_| *at == inode)
    });
    let pid = holders.find(|pid| *pid != 0)?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim_end().to_owned()))
}
