//! Reads, writes, zeroes and flushes a disk or a plain file past the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, PosixFadviseAdvice};

use super::buffer::{ALIGN, part, part_mut};
use super::hold::{Hold, lock};

/// The write engine's interface to a disk; tests implement it to inject failures.
///
/// Several threads call it. As with `pread(2)` and `pwrite(2)`, a call may transfer less than requested.
pub trait Medium: Sync {
    /// In bytes; 0 after the device was removed.
    fn size(&self) -> io::Result<u64>;

    /// Offsets and lengths of reads and writes must be multiples of this; 1 means no restriction.
    fn block_size(&self) -> usize;

    /// Extends a plain file to `len` bytes of zeroes; a longer file and a disk keep their size.
    fn extend(&self, len: u64) -> io::Result<()>;

    /// Returns 0 only at the end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes a range, aligned to [`ALIGN`], read as zeroes without a write. The result is guaranteed.
    fn zero_range(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns when all writes are on the medium: this also flushes the device's own cache.
    fn flush(&self) -> io::Result<()>;

    /// After [`Medium::flush`]: the next reads come from the medium, not from the page cache.
    fn drop_cache(&self) -> io::Result<()>;

    fn is_direct(&self) -> bool;
}

#[allow(unsafe_code)]
mod ioctl {
    //! Numbers from `include/uapi/linux/fs.h`.

    // It always stores 64 bits, but its number contains the size of a `size_t`.
    nix::ioctl_read_bad!(blkgetsize64, nix::request_code_read!(0x12, 114, size_of::<usize>()), u64);
    nix::ioctl_none_bad!(blkrrpart, nix::request_code_none!(0x12, 95));
    nix::ioctl_none_bad!(blkflsbuf, nix::request_code_none!(0x12, 97));
    nix::ioctl_read_bad!(blksszget, nix::request_code_none!(0x12, 104), nix::libc::c_int);
    nix::ioctl_write_ptr_bad!(blkdiscard, nix::request_code_none!(0x12, 119), [u64; 2]);
    nix::ioctl_write_ptr_bad!(blkpg, nix::request_code_none!(0x12, 105), super::PartitionRequest);
    nix::ioctl_read_bad!(blkroget, nix::request_code_none!(0x12, 94), nix::libc::c_int);
}

/// `struct blkpg_ioctl_arg` of `linux/blkpg.h`.
#[repr(C)]
struct PartitionRequest {
    operation: nix::libc::c_int,
    flags: nix::libc::c_int,
    length: nix::libc::c_int,
    partition: *const KernelPartition,
}

/// `struct blkpg_partition`, in bytes; the names have no meaning to the kernel.
#[repr(C)]
struct KernelPartition {
    start: i64,
    length: i64,
    number: nix::libc::c_int,
    names: [[u8; 64]; 2],
}

const BLKPG_ADD_PARTITION: nix::libc::c_int = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// An existing block device for reading and writing, exclusively: `O_EXCL` and `flock`.
    ExclusiveDisk,
    /// An existing device for reading and writing while other programs use parts of it: `flock` only. `O_EXCL` on a disk fails if
    /// one of its partitions is mounted, as on the running system's own disk.
    Shared,
    /// As [`Shared`](Self::Shared), but ignores a lock: a half system that boots is worse than a concurrent write.
    Undo,
    /// A plain file, created if missing, for reading and writing, exclusively: `flock`.
    ExclusiveFile,
}

impl Access {
    fn writes(self) -> bool {
        self != Access::Read
    }
}

#[derive(Debug)]
pub struct Device {
    file: File,
    /// A second, buffered description of a plain file, for its unaligned end.
    buffered: Option<File>,
    is_block: bool,
    block_size: usize,
    direct: AtomicBool,
    can_zero: bool,
    dev: Option<(u32, u32)>,
    /// The lock, where it was taken before the device was opened.
    _hold: Option<Hold>,
}

impl Device {
    /// Opens a block device or a regular file. Only [`Access::ExclusiveFile`] creates a file: the node of a disk that was just
    /// removed must not become one.
    pub fn open(path: &Path, access: Access) -> io::Result<Device> {
        Device::open_held(path, access, None)
    }

    /// Under a lock that was taken before. [`Device::keep`] makes it the device's.
    pub(crate) fn open_held(path: &Path, access: Access, hold: Option<&Hold>) -> io::Result<Device> {
        let is_block = match std::fs::metadata(path) {
            Ok(m) if m.file_type().is_block_device() => true,
            Ok(m) if m.is_file() => false,
            Ok(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a disk nor a plain file"));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound && access == Access::ExclusiveFile => false,
            Err(e) => return Err(e),
        };
        let expected = match access {
            Access::Read | Access::Shared | Access::Undo => is_block,
            Access::ExclusiveDisk => true,
            Access::ExclusiveFile => false,
        };
        if is_block != expected {
            let what = if expected { "no longer a block device" } else { "no longer a plain file" };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let (file, direct) = open_direct(path, access)?;
        let meta = file.metadata()?;
        if meta.file_type().is_block_device() != is_block {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "changed while it was opened"));
        }
        match hold {
            Some(hold) if hold.is_of(&meta)? => {}
            Some(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "replaced after it was locked"));
            }
            // udev does not probe (and hold) a locked device.
            None if access.writes() => match lock(&file) {
                Err(e) if access == Access::Undo => tracing::warn!("{} is locked: {e}", path.display()),
                locked => locked?,
            },
            None => {}
        }
        let buffered = if is_block {
            None
        } else {
            let second = OpenOptions::new().read(true).write(access.writes()).open(path)?;
            let other = second.metadata()?;
            if (other.dev(), other.ino()) != (meta.dev(), meta.ino()) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "replaced while it was opened"));
            }
            Some(second)
        };
        let block_size = if is_block { logical_block_size(&file)? } else { 1 };
        let rdev = meta.rdev();
        let dev = is_block.then(|| major_minor(rdev));
        // Before 4.12, punching a hole into a block device could end in a discard, which guarantees nothing.
        let can_zero = access.writes() && (!is_block || kernel_at_least(4, 12));
        let direct = AtomicBool::new(direct);
        Ok(Device { file, buffered, is_block, block_size, direct, can_zero, dev, _hold: None })
    }

    /// The lock ends with the device.
    pub(crate) fn keep(self, hold: Hold) -> Device {
        Device { _hold: Some(hold), ..self }
    }

    #[must_use]
    pub fn dev(&self) -> Option<(u32, u32)> {
        self.dev
    }

    /// Whether `path` still leads to the open file. `false` after a rename over it, its removal, or a link to another file.
    pub(crate) fn is_at(&self, path: &Path) -> io::Result<bool> {
        let open = self.file.metadata()?;
        match std::fs::metadata(path) {
            Ok(now) => Ok((now.dev(), now.ino()) == (open.dev(), open.ino())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Whether the device refuses writes; an open plain file never does.
    #[allow(unsafe_code)]
    pub(crate) fn is_read_only(&self) -> io::Result<bool> {
        if !self.is_block {
            return Ok(false);
        }
        let mut ro: nix::libc::c_int = 0;
        // SAFETY: BLKROGET stores one int where the pointer leads, which lives through the call.
        unsafe { ioctl::blkroget(self.file.as_raw_fd(), &raw mut ro) }?;
        Ok(ro != 0)
    }

    /// Makes the kernel read the partition table again; retries for `timeout` while the disk is busy.
    #[allow(unsafe_code)]
    pub(crate) fn reread_partitions(&self, timeout: Duration) -> io::Result<()> {
        let end = std::time::Instant::now() + timeout;
        loop {
            // SAFETY: BLKRRPART takes no argument.
            match unsafe { ioctl::blkrrpart(self.file.as_raw_fd()) } {
                Ok(_) => return Ok(()),
                Err(Errno::EBUSY | Errno::EINTR) if std::time::Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Adds a partition that no table on the disk has. The kernel keeps it until it reads the table again.
    #[allow(unsafe_code)]
    pub(crate) fn add_partition(&self, number: u32, range: &Range<u64>) -> io::Result<()> {
        let length = range.end.saturating_sub(range.start);
        let (Ok(start), Ok(length), Ok(number)) =
            (range.start.try_into(), length.try_into(), number.try_into())
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let partition = KernelPartition { start, length, number, names: [[0; 64]; 2] };
        let request = PartitionRequest {
            operation: BLKPG_ADD_PARTITION,
            flags: 0,
            // It is a constant of 152 bytes.
            length: size_of::<KernelPartition>().try_into().unwrap_or_default(),
            partition: &raw const partition,
        };
        // SAFETY: BLKPG reads both structures, which live through the call.
        unsafe { ioctl::blkpg(self.file.as_raw_fd(), &raw const request) }?;
        Ok(())
    }

    /// Gives all blocks back to the disk. What they read as afterwards is not defined.
    #[allow(unsafe_code)]
    pub(crate) fn discard(&self) -> io::Result<()> {
        let range = [0, self.size()?];
        // SAFETY: BLKDISCARD reads two numbers, which live through the call.
        unsafe { ioctl::blkdiscard(self.file.as_raw_fd(), &raw const range) }?;
        Ok(())
    }

    fn leave_direct(&self) -> io::Result<()> {
        // The flag changes last: a thread that sees it cleared may rely on the description.
        let flags = OFlag::from_bits_retain(nix::fcntl::fcntl(&self.file, FcntlArg::F_GETFL)?);
        nix::fcntl::fcntl(&self.file, FcntlArg::F_SETFL(flags.difference(OFlag::O_DIRECT)))?;
        if self.direct.swap(false, Ordering::AcqRel) {
            tracing::warn!("direct I/O is refused here; using the page cache");
        }
        Ok(())
    }

    /// How many of the first bytes can use direct I/O, and the description for them.
    fn route(&self, ptr: *const u8, len: usize, offset: u64) -> (usize, &File) {
        let (true, Some(buffered)) = (self.is_direct(), &self.buffered) else { return (len, &self.file) };
        let aligned = offset.is_multiple_of(ALIGN as u64) && (ptr as usize).is_multiple_of(ALIGN);
        let whole = len - len % ALIGN;
        if aligned && whole > 0 { (whole, &self.file) } else { (len, buffered) }
    }

    /// Runs `io`; repeats it through the cache if the medium refuses an aligned direct request.
    fn falling_back(&self, io: impl Fn() -> io::Result<usize>) -> io::Result<usize> {
        // Read first: when the request fails, another thread may already have left direct I/O.
        let was_direct = self.is_direct();
        match io() {
            Err(e) if e.raw_os_error() == Some(nix::libc::EINVAL) && was_direct => {
                self.leave_direct()?;
                io()
            }
            other => other,
        }
    }
}

impl Medium for Device {
    #[allow(unsafe_code)]
    fn size(&self) -> io::Result<u64> {
        if !self.is_block {
            return Ok(self.file.metadata()?.len());
        }
        let mut size = 0u64;
        // SAFETY: BLKGETSIZE64 stores one u64 where the pointer leads, which lives through the call.
        unsafe { ioctl::blkgetsize64(self.file.as_raw_fd(), &raw mut size) }?;
        Ok(size)
    }

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn extend(&self, len: u64) -> io::Result<()> {
        if !self.is_block && self.file.metadata()?.len() < len {
            self.file.set_len(len)?;
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let (ptr, len) = (buf.as_ptr(), buf.len());
        let buf = std::cell::RefCell::new(buf);
        self.falling_back(|| {
            let (n, file) = self.route(ptr, len, offset);
            let mut buf = buf.borrow_mut();
            file.read_at(part_mut(&mut buf, ..n)?, offset)
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.falling_back(|| {
            let (n, file) = self.route(buf.as_ptr(), buf.len(), offset);
            file.write_at(part(buf, ..n)?, offset)
        })
    }

    fn zero_range(&self, offset: u64, len: u64) -> io::Result<()> {
        if !self.can_zero {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (Ok(offset), Ok(len)) = (offset.try_into(), len.try_into()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // The driver guarantees this zeroing or returns EOPNOTSUPP; it is never a plain discard (`blkdev_fallocate`, since 4.12).
        let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        Ok(nix::fcntl::fallocate(&self.file, how, offset, len)?)
    }

    fn flush(&self) -> io::Result<()> {
        // fsync of a block device writes its pages back and sends the drive a cache flush.
        self.file.sync_all()
    }

    #[allow(unsafe_code)]
    fn drop_cache(&self) -> io::Result<()> {
        if self.is_block && !self.is_direct() {
            // SAFETY: BLKFLSBUF takes no argument.
            unsafe { ioctl::blkflsbuf(self.file.as_raw_fd()) }?;
        }
        for file in std::iter::once(&self.file).chain(&self.buffered) {
            nix::fcntl::posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        }
        Ok(())
    }

    fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Acquire)
    }
}

fn open_direct(path: &Path, access: Access) -> io::Result<(File, bool)> {
    let flags = if access == Access::ExclusiveDisk { OFlag::O_EXCL } else { OFlag::empty() };
    let open = |flags: OFlag| {
        OpenOptions::new()
            .read(true)
            .write(access.writes())
            .create(access == Access::ExclusiveFile)
            .truncate(false)
            .custom_flags((flags | OFlag::O_CLOEXEC).bits())
            .open(path)
    };
    match open(flags | OFlag::O_DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(e) if e.raw_os_error() == Some(nix::libc::EINVAL) => {
            tracing::warn!("no direct I/O on {}; using the page cache", path.display());
            Ok((open(flags)?, false))
        }
        Err(e) => Err(e),
    }
}

/// Makes the name of a file durable: flushes its folder.
pub(crate) fn sync_name(path: &Path) -> io::Result<()> {
    let parent = std::path::absolute(path)?.parent().map(Path::to_owned);
    parent.map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

#[allow(unsafe_code)]
fn logical_block_size(file: &File) -> io::Result<usize> {
    let mut size: nix::libc::c_int = 0;
    // SAFETY: BLKSSZGET stores one int where the pointer leads, which lives through the call.
    unsafe { ioctl::blksszget(file.as_raw_fd(), &raw mut size) }?;
    usize::try_from(size)
        .ok()
        .filter(|s| s.is_power_of_two() && (512..=65536).contains(s))
        .ok_or_else(|| io::Error::other(format!("impossible logical block size {size}")))
}

#[must_use]
pub fn major_minor(rdev: u64) -> (u32, u32) {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    (narrow(nix::sys::stat::major(rdev)), narrow(nix::sys::stat::minor(rdev)))
}

fn kernel_at_least(major: u32, minor: u32) -> bool {
    let Ok(name) = nix::sys::utsname::uname() else { return false };
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::buffer::Buffer;

    fn file(len: u64) -> (tempfile::TempDir, std::path::PathBuf) {
        // Not in /tmp, which may be a tmpfs: direct I/O needs a disk.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("disk");
        File::create(&path).unwrap().set_len(len).unwrap();
        (dir, path)
    }

    #[test]
    fn a_plain_file_takes_any_length_and_keeps_its_size() {
        let (_dir, path) = file(3 * 4096 + 5);
        let d = Device::open(&path, Access::ExclusiveFile).unwrap();
        let mut data = Buffer::zeroed(2 * 4096 + 5);
        data.fill(9);
        let mut done = 0;
        while done < data.len() {
            done += d.write_at(&data[done..], 4096 + done as u64).unwrap();
        }
        d.flush().unwrap();
        d.drop_cache().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [vec![0; 4096], vec![9; 2 * 4096 + 5]].concat());
        d.zero_range(8192, 4096).unwrap();
        let mut back = Buffer::zeroed(4096);
        assert_eq!(d.read_at(&mut back, 8192).unwrap(), 4096);
        assert!(back.iter().all(|&b| b == 0));
        d.extend(10).unwrap();
        assert_eq!(d.size().unwrap(), 3 * 4096 + 5);
        d.extend(1 << 20).unwrap();
        assert_eq!(d.size().unwrap(), 1 << 20);
    }

    #[test]
    fn is_locked_and_refuses_what_is_no_medium() {
        let (dir, path) = file(4096);
        let _held = Device::open(&path, Access::ExclusiveFile).unwrap();
        let again = Device::open(&path, Access::ExclusiveFile).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::WouldBlock);
        Device::open(&path, Access::Read).unwrap();
        assert!(Device::open(&path, Access::ExclusiveDisk).is_err());
        let gone = dir.path().join("sdz");
        assert_eq!(Device::open(&gone, Access::ExclusiveDisk).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!gone.exists(), "a disk that has gone became a file");
        assert!(Device::open(dir.path(), Access::Read).is_err());
        assert!(Device::open(&dir.path().join("none"), Access::Read).is_err());
    }

    #[test]
    fn device_numbers_are_split() {
        assert_eq!(major_minor(0x0010_0302), (3, 0x102));
    }
}
