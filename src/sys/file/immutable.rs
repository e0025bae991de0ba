//! The flag that forbids every change of a file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// `FS_IMMUTABLE_FL` of `linux/fs.h`.
const IMMUTABLE: nix::libc::c_int = 0x10;

#[allow(unsafe_code)]
mod raw {
    use nix::libc::{c_int, c_long};
    // Their numbers name a `long`, and the kernel copies an `int`.
    nix::ioctl_read_bad!(get_flags, nix::request_code_read!(b'f', 1, size_of::<c_long>()), c_int);
    nix::ioctl_write_ptr_bad!(set_flags, nix::request_code_write!(b'f', 2, size_of::<c_long>()), c_int);
}

/// Takes the flag from the file, if it has it.
#[allow(unsafe_code)]
pub fn clear_immutable(file: &File) -> io::Result<()> {
    let mut flags = 0;
    // SAFETY: `flags` outlives the call, which writes an `int` to it.
    unsafe { raw::get_flags(file.as_raw_fd(), &raw mut flags) }?;
    if flags & IMMUTABLE != 0 {
        let changed = flags & !IMMUTABLE;
        // SAFETY: `changed` outlives the call, which reads an `int` from it.
        unsafe { raw::set_flags(file.as_raw_fd(), &raw const changed) }?;
    }
    Ok(())
}
