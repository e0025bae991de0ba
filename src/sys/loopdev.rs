use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::block::major_minor;

/// The backing file of a loop device, as the driver holds it, wherever that file is visible now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backing {
    pub file_system: (u32, u32),
    pub inode: u64,
    /// Set where the loop device is backed by a block device, not by a file.
    pub device: Option<(u32, u32)>,
}

/// `struct loop_info64` of `linux/loop.h`, without names for the strings and the key.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    rest: [u8; 208],
}

/// `linux/loop.h`: `LOOP_GET_STATUS64` is older than the numbering of ioctls by size and direction.
const LOOP_GET_STATUS64: u64 = 0x4c05;

mod ioctl {
    #![allow(unsafe_code, missing_docs)]
    use super::{LOOP_GET_STATUS64, LoopInfo64};
    nix::ioctl_read_bad!(loop_get_status64, LOOP_GET_STATUS64, LoopInfo64);
}

#[allow(unsafe_code)]
pub(crate) fn backing(node: &Path) -> io::Result<Backing> {
    let file = File::open(node)?;
    let mut info = LoopInfo64 { device: 0, inode: 0, rdevice: 0, rest: [0; 208] };
    // SAFETY: the kernel fills at most `sizeof(struct loop_info64)` bytes, which `LoopInfo64` has (tested below).
    unsafe { ioctl::loop_get_status64(file.as_raw_fd(), &raw mut info) }?;
    let device = (info.rdevice != 0).then(|| major_minor(info.rdevice));
    Ok(Backing { file_system: major_minor(info.device), inode: info.inode, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_size_of_the_kernels() {
        assert_eq!(size_of::<LoopInfo64>(), 232);
    }

    #[test]
    fn other_nodes_are_an_error() {
        assert!(backing(Path::new("/dev/null")).is_err());
    }
}
