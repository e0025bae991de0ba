//! An open folder: names are relative to its descriptor, so that no path can lead elsewhere.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{AtFlags, FcntlArg, FlockArg, OFlag, PosixFadviseAdvice};
use nix::sys::stat::{Mode, SFlag};
use nix::sys::statfs;
use nix::unistd::UnlinkatFlags;

use super::SECTOR;
use super::content::{Content, STEP, fill};
use super::flush::Drive;
use crate::sys::buffer::Buffer;
use crate::sys::command::wait_for_starts;
use crate::sys::crash_point::crash_point;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Folder,
    Link,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    pub kind: FileKind,
    pub size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Allocation unit in bytes: a cluster, a block.
    pub unit: u64,
    /// Free units for this process.
    pub free: u64,
}

#[derive(Debug)]
pub struct Folder {
    dir: File,
    path: PathBuf,
    dev: u64,
    fat: bool,
    ext4: bool,
    drive: Arc<Drive>,
}

const OPEN_FOLDER: OFlag = OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

impl Folder {
    /// `path` may lead through links, but must not be one.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let dir = File::from(nix::fcntl::open(path, OPEN_FOLDER, Mode::empty())?);
        Self::from_file(dir, path.to_owned(), None)
    }

    /// As [`open`](Self::open), for a process that has no access to the drive below the folder. Every write of this module ends
    /// with an error, since the drive cannot be flushed.
    pub fn open_to_read(path: &Path) -> io::Result<Folder> {
        let dir = File::from(nix::fcntl::open(path, OPEN_FOLDER, Mode::empty())?);
        Self::on(dir, path.to_owned(), |_, _| Ok(Arc::new(Drive::Unneeded)))
    }

    /// `dir` may be open for its path only.
    pub(super) fn at(dir: &File, path: &Path) -> io::Result<Folder> {
        let dir = File::from(nix::fcntl::openat(dir, ".", OPEN_FOLDER, Mode::empty())?);
        Self::from_file(dir, path.to_owned(), None)
    }

    fn from_file(dir: File, path: PathBuf, above: Option<&Folder>) -> io::Result<Folder> {
        Self::on(dir, path, |dev, fat| match above.filter(|a| a.dev == dev) {
            Some(above) => Ok(above.drive.clone()),
            None => Ok(Arc::new(match Drive::of(dev) {
                // In a container. File systems with a journal flush the drive with each `fsync`; FAT did not always.
                Err(e) if e.kind() == io::ErrorKind::NotFound && !fat => Drive::Anonymous,
                drive => drive?,
            })),
        })
    }

    fn on(
        dir: File,
        path: PathBuf,
        drive: impl FnOnce(u64, bool) -> io::Result<Arc<Drive>>,
    ) -> io::Result<Folder> {
        let dev = dir.metadata()?.dev();
        let of = statfs::fstatfs(&dir)?.filesystem_type();
        let (fat, ext4) = (of == statfs::MSDOS_SUPER_MAGIC, of == statfs::EXT4_SUPER_MAGIC);
        Ok(Folder { drive: drive(dev, fat)?, dir, path, dev, fat, ext4 })
    }

    pub fn enter(&self, name: &OsStr) -> io::Result<Folder> {
        let dir = File::from(nix::fcntl::openat(&self.dir, name, OPEN_FOLDER, Mode::empty())?);
        let path = if name == "." { self.path.clone() } else { self.path.join(name) };
        Self::from_file(dir, path, Some(self))
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn dev(&self) -> u64 {
        self.dev
    }

    /// On a FAT, names have no case and renames are not atomic.
    #[must_use]
    pub(crate) fn is_fat(&self) -> bool {
        self.fat
    }

    /// A name without its case, where the file system ignores case: equal results mean one file.
    #[must_use]
    pub fn fold(&self, name: &OsStr) -> OsString {
        match name.to_str() {
            _ if !self.fat => name.to_owned(),
            Some(text) => text.to_lowercase().into(),
            None => name.to_ascii_lowercase(),
        }
    }

    #[must_use]
    pub fn same_name(&self, a: &OsStr, b: &OsStr) -> bool {
        self.fold(a) == self.fold(b)
    }

    pub fn space(&self) -> io::Result<Space> {
        let stat = nix::sys::statvfs::fstatvfs(&self.dir)?;
        // The field's width depends on the platform.
        #[allow(clippy::useless_conversion)]
        Ok(Space { unit: u64::from(stat.fragment_size()).max(1), free: stat.blocks_available().into() })
    }

    /// Capacity of the top folder of a FAT12 or FAT16 in entries (a long name takes several); `None` where it can grow.
    pub(crate) fn top_entries(&self) -> io::Result<Option<u64>> {
        let Some(boot) = self.drive.boot_sector().filter(|_| self.fat).transpose()? else { return Ok(None) };
        // Microsoft's FAT specification: BPB_RootEntCnt, 0 on FAT32.
        let (low, high) = (boot.get(17).copied().unwrap_or(0), boot.get(18).copied().unwrap_or(0));
        Ok(Some(u64::from(u16::from_le_bytes([low, high]))).filter(|n| *n > 0))
    }

    /// The block device below the file system, opened again for reads that come from the medium.
    pub(super) fn device(&self) -> io::Result<File> {
        let node = Drive::of(self.dev)?.node().ok_or_else(|| io::Error::other("no block device"))?;
        past_cache(&node)?;
        Ok(node)
    }

    /// The names in it, sorted, with the type that the folder itself gives, if any.
    ///
    /// Looks nothing up. That matters for a folder that a power cut left incomplete: vfat makes the file system read-only on any
    /// access to more than its name (`fat_validate_dir`, Linux 3.19).
    pub fn list(&self) -> io::Result<Vec<(OsString, Option<FileKind>)>> {
        let mut dir = nix::dir::Dir::openat(&self.dir, ".", OPEN_FOLDER, Mode::empty())?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let entry = entry?;
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            let kind = entry.file_type().map(|kind| match kind {
                nix::dir::Type::File => FileKind::File,
                nix::dir::Type::Directory => FileKind::Folder,
                nix::dir::Type::Symlink => FileKind::Link,
                _ => FileKind::Other,
            });
            if name != "." && name != ".." {
                names.push((name, kind));
            }
        }
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    pub fn entry(&self, name: &OsStr) -> io::Result<Option<FolderEntry>> {
        match nix::sys::stat::fstatat(&self.dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let kind = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
                    SFlag::S_IFREG => FileKind::File,
                    SFlag::S_IFDIR => FileKind::Folder,
                    SFlag::S_IFLNK => FileKind::Link,
                    _ => FileKind::Other,
                };
                Ok(Some(FolderEntry { kind, size: u64::try_from(stat.st_size).unwrap_or(0) }))
            }
            Err(nix::errno::Errno::ENOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    pub(crate) fn is_one_file(&self, a: &OsStr, b: &OsStr) -> io::Result<bool> {
        let open = |name: &OsStr| {
            // Both stay open during the comparison: vfat may give an unused file another inode number.
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            nix::fcntl::openat(&self.dir, name, flags, Mode::empty()).map(File::from)
        };
        match (open(a), open(b)) {
            (Ok(a), Ok(b)) => {
                let (a, b) = (a.metadata()?, b.metadata()?);
                Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
            }
            (Err(nix::errno::Errno::ENOENT), _) | (_, Err(nix::errno::Errno::ENOENT)) => Ok(false),
            (Err(e), _) | (_, Err(e)) => Err(e.into()),
        }
    }

    pub fn link(&self, name: &OsStr) -> io::Result<PathBuf> {
        Ok(nix::fcntl::readlinkat(&self.dir, name)?.into())
    }

    /// Opens a regular file for reading; never a link, and never waits for a pipe.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        self.open_regular(name, OFlag::O_RDONLY)
    }

    fn open_regular(&self, name: &OsStr, access: OFlag) -> io::Result<File> {
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(nix::fcntl::openat(&self.dir, name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(file)
    }

    /// Opens a regular file for synchronous writes; never a link.
    pub(super) fn open_synchronous(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_DSYNC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(nix::fcntl::openat(&self.dir, name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(file)
    }

    /// Opens a regular file for reads that come from the medium, without reading ahead.
    pub(super) fn open_past_cache(&self, name: &OsStr) -> io::Result<File> {
        let file = self.open_file(name)?;
        past_cache(&file)?;
        nix::fcntl::posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM)?;
        Ok(file)
    }

    /// Opens a regular file to append; never a link.
    pub(super) fn open_to_append(&self, name: &OsStr) -> io::Result<File> {
        self.open_regular(name, OFlag::O_RDWR | OFlag::O_APPEND)
    }

    /// Whether a file has `content`, read from the medium, not from the cache.
    pub fn holds(&self, name: &OsStr, content: &Content<'_>) -> io::Result<bool> {
        crash_point!(self.path.join(name), "holds");
        let file = match self.open_file(name) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        let size = content.size()?;
        if file.metadata()?.len() != size {
            return Ok(false);
        }
        past_cache(&file)?;
        let (mut there, mut expected) = (Buffer::zeroed(STEP), vec![0; STEP]);
        let mut offset = 0;
        while offset < size {
            let n = content.fill(&mut expected, offset)?;
            let m = fill_direct(&file, &mut there, offset)?;
            if n == 0 || expected.get(..n) != there.get(..m) {
                return Ok(false);
            }
            offset += u64::try_from(n).unwrap_or(u64::MAX);
        }
        Ok(true)
    }
}

/// Makes the next reads come from the medium: writes back and drops the pages, and bypasses the cache where possible.
fn past_cache(file: &File) -> io::Result<()> {
    file.sync_all()?;
    nix::fcntl::posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    let flags = OFlag::from_bits_retain(nix::fcntl::fcntl(file, FcntlArg::F_GETFL)?);
    match nix::fcntl::fcntl(file, FcntlArg::F_SETFL(flags | OFlag::O_DIRECT)) {
        // This file system has no direct I/O; at least the pages are dropped.
        Ok(_) | Err(nix::errno::Errno::EINVAL) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

pub(super) fn fill_direct(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    match fill(file, buf, offset) {
        // Directly after the last sector of a file nothing is aligned; and some drivers refuse direct I/O late.
        Err(e) if e.raw_os_error() == Some(nix::libc::EINVAL) => {
            let flags = OFlag::from_bits_retain(nix::fcntl::fcntl(file, FcntlArg::F_GETFL)?);
            nix::fcntl::fcntl(file, FcntlArg::F_SETFL(flags.difference(OFlag::O_DIRECT)))?;
            fill(file, buf, offset)
        }
        other => other,
    }
}

/// The calls that the sequences of this module are made of. A power cut may come before each of them.
impl Folder {
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        crash_point!(self.path, "names");
        Ok(self.list()?.into_iter().map(|(name, _)| name).collect())
    }

    /// Opens a file, so that what it has is freed only when it is closed; `None` where it does not exist.
    pub(crate) fn hold(&self, name: &OsStr) -> io::Result<Option<File>> {
        crash_point!(self.path.join(name), "hold");
        match self.open_file(name) {
            Ok(file) => Ok(Some(file)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What stays open although its name goes: the file, so that on a FAT its clusters are freed only after its entry has gone from the medium.
    ///
    /// On an ext4 it is closed: that has the first open file without a name in its superblock (`s_last_orphan`), and power that fails between
    /// the two sectors of the superblock leaves one with a wrong checksum, whose file system Linux does not mount. Without such files, what
    /// is written over the superblock is what it has. A child that another thread has just forked has the file open as well, until its program begins.
    pub(super) fn keep_open(&self, file: Option<File>) -> io::Result<Option<File>> {
        match file {
            Some(file) if self.ext4 => {
                self.close(file)?;
                wait_for_starts();
                Ok(None)
            }
            file => Ok(file),
        }
    }

    pub(super) fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        crash_point!(self.path.join(name), "create");
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(mode | 0o600);
        let file = File::from(nix::fcntl::openat(&self.dir, name, flags, mode)?);
        self.keep(name, &file)?;
        Ok(file)
    }

    pub(super) fn write(&self, file: &File, content: &Content<'_>) -> io::Result<()> {
        crash_point!(self.path, "write {}", content.size()?);
        let mut buf = vec![0; STEP];
        let mut offset = 0;
        loop {
            let n = content.fill(&mut buf, offset)?;
            let Some(part) = buf.get(..n).filter(|p| !p.is_empty()) else { return Ok(()) };
            file.write_all_at(part, offset)?;
            offset += u64::try_from(n).unwrap_or(u64::MAX);
        }
    }

    pub(super) fn sync(&self, file: &File) -> io::Result<()> {
        crash_point!(self.path, "sync");
        file.sync_all()
    }

    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        crash_point!(self.path.join(to), "rename {}", from.display());
        Ok(nix::fcntl::renameat(&self.dir, from, &self.dir, to)?)
    }

    /// Then writes back the whole file system. Each `fsync` of a file on FAT would write its own entry; this changes all entries in memory
    /// before it writes the sectors that have them (Linux: `sync_filesystem`, `__fat_write_inode`).
    pub(super) fn rename_together(&self, names: &[(&OsStr, &OsStr)]) -> io::Result<()> {
        crash_point!(self.path, "rename together");
        for (from, to) in names {
            nix::fcntl::renameat(&self.dir, *from, &self.dir, *to)?;
        }
        Ok(nix::unistd::syncfs(&self.dir)?)
    }

    pub(crate) fn unlink(&self, name: &OsStr) -> io::Result<()> {
        crash_point!(self.path.join(name), "unlink");
        Ok(nix::unistd::unlinkat(&self.dir, name, UnlinkatFlags::NoRemoveDir)?)
    }

    pub(super) fn make(&self, name: &OsStr) -> io::Result<File> {
        crash_point!(self.path.join(name), "make");
        nix::sys::stat::mkdirat(&self.dir, name, Mode::from_bits_truncate(0o755))?;
        Ok(File::from(nix::fcntl::openat(&self.dir, name, OPEN_FOLDER, Mode::empty())?))
    }

    pub(super) fn hold_folder(&self, name: &OsStr) -> io::Result<File> {
        crash_point!(self.path.join(name), "hold");
        Ok(File::from(nix::fcntl::openat(&self.dir, name, OPEN_FOLDER, Mode::empty())?))
    }

    pub(super) fn unlink_folder(&self, name: &OsStr) -> io::Result<()> {
        crash_point!(self.path.join(name), "unlink");
        Ok(nix::unistd::unlinkat(&self.dir, name, UnlinkatFlags::RemoveDir)?)
    }

    pub(crate) fn sync_folder(&self) -> io::Result<()> {
        crash_point!(self.path, "sync folder");
        self.dir.sync_all()
    }

    /// Writes back the block device and flushes the drive's cache.
    pub(crate) fn flush(&self) -> io::Result<()> {
        crash_point!(self.path, "flush");
        self.drive.flush()
    }

    /// Closes a file: frees the clusters of one that has no name any more.
    pub(super) fn close(&self, file: File) -> io::Result<()> {
        crash_point!(self.path, "{}", if file.metadata()?.nlink() == 0 { "free" } else { "close" });
        drop(file);
        Ok(())
    }

    pub(super) fn open_in_place(&self, name: &OsStr) -> io::Result<File> {
        crash_point!(self.path.join(name), "open in place");
        self.open_synchronous(name)
    }

    /// Writes one sector, or the file's part of the last one; the drive has the data when this returns.
    pub(super) fn write_sector(&self, file: &File, index: usize, sector: &[u8]) -> io::Result<()> {
        crash_point!(self.path, "sector {}", index);
        let offset = u64::try_from(index.saturating_mul(SECTOR)).map_err(io::Error::other)?;
        file.write_all_at(sector, offset)
    }

    pub(super) fn open_to_write(&self, name: &OsStr) -> io::Result<File> {
        crash_point!(self.path.join(name), "open to write");
        self.open_regular(name, OFlag::O_RDWR)
    }

    pub(super) fn put(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        crash_point!(self.path, "put {}+{}", offset, bytes.len());
        file.write_all_at(bytes, offset)
    }

    pub(super) fn cut(&self, file: &File, size: u64) -> io::Result<()> {
        crash_point!(self.path, "cut {}", size);
        file.set_len(size)
    }
}

impl Folder {
    /// Locks a new temporary file, so that no sweep takes it for an abandoned one.
    pub(super) fn keep(&self, name: &OsStr, file: &File) -> io::Result<()> {
        let lost = || io::Error::from(io::ErrorKind::AlreadyExists);
        lock(file).map_err(|e| if e.kind() == io::ErrorKind::WouldBlock { lost() } else { e })?;
        let own = nix::sys::stat::fstat(file)?;
        match nix::sys::stat::fstatat(&self.dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(there) if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino) => Ok(()),
            Ok(_) | Err(nix::errno::Errno::ENOENT) => Err(lost()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Takes the lock that means "in use", if it is free.
pub(super) fn lock(file: &File) -> io::Result<()> {
    #[allow(deprecated)] // nix's replacement takes ownership of the file
    Ok(nix::fcntl::flock(file.as_raw_fd(), FlockArg::LockExclusiveNonblock)?)
}

pub(super) fn bytes(name: &OsStr) -> &[u8] {
    name.as_bytes()
}
