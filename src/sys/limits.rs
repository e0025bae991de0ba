//! Limits of this process, which its children inherit, and memory that stays in memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use nix::libc;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The size that makes the kernel write no core dump, neither to a file nor to a program that `core_pattern` names: for such a program it does not count
/// 0, and ends the dump at 1 (`fs/coredump.c`, `do_coredump`).
const NO_CORE: u64 = 1;

/// From now on no core dump of this process, or of a program that it starts, can have a secret in it. The memory of this process is closed to others
/// without capabilities, too.
pub(crate) fn forbid_core_dumps() {
    let size = getrlimit(Resource::RLIMIT_CORE).map_or(NO_CORE, |(_, hard)| hard.min(NO_CORE));
    if let Err(e) = setrlimit(Resource::RLIMIT_CORE, size, size).and_then(|()| prctl::set_dumpable(false)) {
        tracing::warn!("cannot forbid core dumps: {e}");
    }
}

/// The memory pages of a secret are not swapped to a disk from now on, until this process ends.
#[allow(unsafe_code)]
pub(crate) fn keep_in_memory(secret: &[u8]) {
    // SAFETY: the kernel reads and writes nothing of the memory, which is there as long as `secret`.
    let done = unsafe { libc::mlock(secret.as_ptr().cast(), secret.len()) };
    warn(if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) });
}

/// The same for the content of a file in memory, as long as this is there.
#[derive(Debug)]
pub(crate) struct InMemory {
    place: usize,
    length: usize,
}

impl InMemory {
    /// `None` where it cannot be.
    #[allow(unsafe_code)]
    pub(crate) fn keep(file: &File, length: usize) -> Option<InMemory> {
        // SAFETY: a new mapping, which nothing reads, at a place that the kernel chooses.
        let map = unsafe {
            let place = std::ptr::null_mut();
            libc::mmap(place, length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if map == libc::MAP_FAILED {
            warn(Err(io::Error::last_os_error()));
            return None;
        }
        let kept = InMemory { place: map as usize, length };
        // SAFETY: the kernel reads and writes nothing of the mapping, which is there.
        let done = unsafe { libc::mlock(map, length) };
        warn(if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) });
        Some(kept)
    }
}

impl Drop for InMemory {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: its own mapping, to which nothing else refers.
        unsafe { libc::munmap(self.place as *mut libc::c_void, self.length) };
    }
}

/// Overwrites a secret in a way that the compiler keeps.
pub(crate) fn wipe<T: Copy + Default>(secret: &mut [T]) {
    secret.fill(T::default());
    std::hint::black_box(secret);
}

fn warn(done: io::Result<()>) {
    if let Err(e) = done {
        tracing::warn!("cannot keep a secret out of the swap space: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_core_is_dumped_to_a_file_or_to_a_program() {
        forbid_core_dumps();
        assert_eq!(getrlimit(Resource::RLIMIT_CORE).unwrap().1.max(NO_CORE), NO_CORE);
        assert!(!prctl::get_dumpable().unwrap());
    }
}
