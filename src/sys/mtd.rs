//! Raw flash through its character device, `/dev/mtdN`. Numbers and structures from `include/uapi/mtd/mtd-abi.h`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::FlockArg;

use super::block::Medium;

pub(crate) const CHAR_MAJOR: u32 = 90;

pub(crate) const BLOCK_MAJOR: u32 = 31;

/// The device accepts writes: not a ROM, and not declared read-only.
pub(crate) const WRITEABLE: u32 = 0x400;

/// `struct mtd_info_user`.
#[derive(Debug, Default, Clone, Copy)]
#[repr(C)]
pub struct RawInfo {
    kind: u8,
    flags: u32,
    size: u32,
    erase_size: u32,
    write_size: u32,
    oob_size: u32,
    padding: u64,
}

/// `struct erase_info_user`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RawRange {
    start: u32,
    length: u32,
}

#[allow(unsafe_code)]
mod ioctl {
    use super::{RawInfo, RawRange};

    nix::ioctl_read!(memgetinfo, b'M', 1, RawInfo);
    nix::ioctl_write_ptr!(memerase, b'M', 2, RawRange);
    nix::ioctl_write_ptr!(memlock, b'M', 5, RawRange);
    nix::ioctl_write_ptr!(memunlock, b'M', 6, RawRange);
    nix::ioctl_write_ptr!(memgetbadblock, b'M', 11, nix::libc::loff_t);
    nix::ioctl_read!(memislocked, b'M', 23, RawRange);
}

/// Geometry, as the driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// `MTD_*` type: 3 NOR, 4 NAND, 8 NAND with several bits a cell, …
    pub kind: u8,
    pub flags: u32,
    /// In bytes, modulo 2^32: only sysfs has larger sizes.
    pub size: u32,
    pub erase_size: u32,
    /// Bytes that are written at once; 1 for most NOR.
    pub write_size: u32,
}

/// Reads come from the chip: this device has no cache.
#[derive(Debug)]
pub struct Mtd {
    file: File,
    info: Info,
}

impl Mtd {
    /// For writing, it takes a lock against other writers that use it.
    pub fn open(path: &Path, write: bool) -> io::Result<Mtd> {
        let file = OpenOptions::new().read(true).write(write).open(path)?;
        if !file.metadata()?.file_type().is_char_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a character device"));
        }
        if write {
            #[allow(deprecated)] // nix's replacement takes ownership of the file
            nix::fcntl::flock(file.as_raw_fd(), FlockArg::LockExclusiveNonblock)?;
        }
        let info = read_info(&file)?;
        Ok(Mtd { file, info })
    }

    #[must_use]
    pub fn info(&self) -> Info {
        self.info
    }

    /// Erases whole erase blocks: bits become 1. After an error the range may have any content.
    #[allow(unsafe_code)]
    pub fn erase(&self, start: u64, length: u64) -> io::Result<()> {
        let range = range(start, length)?;
        // SAFETY: MEMERASE reads one `erase_info_user` where the pointer leads, which lives through the call.
        unsafe { ioctl::memerase(self.file.as_raw_fd(), &raw const range) }?;
        Ok(())
    }

    /// Whether a range is locked against writes; `None` where the chip or its driver does not report it.
    #[allow(unsafe_code)]
    pub(crate) fn is_locked(&self, start: u64, length: u64) -> io::Result<Option<bool>> {
        let mut range = range(start, length)?;
        // SAFETY: MEMISLOCKED reads one `erase_info_user` (its direction bits notwithstanding), which lives through it.
        match unsafe { ioctl::memislocked(self.file.as_raw_fd(), &raw mut range) } {
            Ok(answer) => Ok(Some(answer > 0)),
            Err(Errno::EOPNOTSUPP | Errno::ENOTTY) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Unlocks a range; returns whether the chip has locks at all.
    #[allow(unsafe_code)]
    pub fn unlock(&self, start: u64, length: u64) -> io::Result<bool> {
        let range = range(start, length)?;
        // SAFETY: MEMUNLOCK reads one `erase_info_user` where the pointer leads, which lives through the call.
        supported(unsafe { ioctl::memunlock(self.file.as_raw_fd(), &raw const range) })
    }

    /// Locks a range again; returns whether the chip has locks at all.
    #[allow(unsafe_code)]
    pub fn lock(&self, start: u64, length: u64) -> io::Result<bool> {
        let range = range(start, length)?;
        // SAFETY: MEMLOCK reads one `erase_info_user` where the pointer leads, which lives through the call.
        supported(unsafe { ioctl::memlock(self.file.as_raw_fd(), &raw const range) })
    }

    #[allow(unsafe_code)]
    pub(crate) fn is_bad(&self, offset: u64) -> io::Result<bool> {
        let offset = nix::libc::loff_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: MEMGETBADBLOCK reads one `loff_t` where the pointer leads, which lives through the call.
        match unsafe { ioctl::memgetbadblock(self.file.as_raw_fd(), &raw const offset) } {
            Ok(answer) => Ok(answer > 0),
            // Chips without bad blocks have no such call.
            Err(Errno::EOPNOTSUPP | Errno::ENOTTY) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

impl Medium for Mtd {
    fn size(&self) -> io::Result<u64> {
        Ok(u64::from(self.info.size))
    }

    fn block_size(&self) -> usize {
        usize::try_from(self.info.write_size).unwrap_or(1)
    }

    fn extend(&self, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(buf, offset)
    }

    fn zero_range(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&self) -> io::Result<()> {
        // Writes return when the chip has finished (`mtdchar_write` waits); these files have no fsync.
        Ok(())
    }

    fn drop_cache(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_direct(&self) -> bool {
        true
    }
}

#[allow(unsafe_code)]
fn read_info(file: &File) -> io::Result<Info> {
    let mut raw = RawInfo::default();
    // SAFETY: MEMGETINFO stores one `mtd_info_user` where the pointer leads, which lives through the call.
    unsafe { ioctl::memgetinfo(file.as_raw_fd(), &raw mut raw) }?;
    let RawInfo { kind, flags, size, erase_size, write_size, .. } = raw;
    Ok(Info { kind, flags, size, erase_size, write_size })
}

fn range(start: u64, length: u64) -> io::Result<RawRange> {
    match (u32::try_from(start), u32::try_from(length)) {
        (Ok(start), Ok(length)) => Ok(RawRange { start, length }),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "beyond 4 GiB")),
    }
}

fn supported(answer: nix::Result<nix::libc::c_int>) -> io::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(Errno::EOPNOTSUPP | Errno::ENOTTY) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernels() {
        assert_eq!(size_of::<RawInfo>(), 32);
        assert_eq!(size_of::<RawRange>(), 8);
    }

    #[test]
    fn other_nodes_are_an_error() {
        assert!(Mtd::open(Path::new("/dev/null"), false).is_err());
        assert!(Mtd::open(Path::new("/proc/version"), false).is_err());
    }

    #[test]
    fn nothing_beyond_4_gib_wraps_around() {
        assert!(range(1 << 32, 512).is_err());
        assert!(range(0, 1 << 32).is_err());
    }
}
