//! Work in another mount namespace: that of the system itself, or one of its own.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::thread;

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, setns, unshare};

/// Runs `work` where the first process has its mounts, if that is another place than ours and paths mean the same there;
/// otherwise here: what is mounted in a service's own namespace is seen by nobody else.
///
/// # Errors
/// Of `work`, and of the system calls that lead there.
pub fn in_host_namespace<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(namespace) = other_namespace() else { return work() };
    on_a_thread(|| {
        // A namespace of mounts is entered by a whole root and working folder, which threads share until told otherwise.
        unshare(CloneFlags::CLONE_FS)?;
        setns(namespace, CloneFlags::CLONE_NEWNS)?;
        work()
    })
}

/// Runs `work`, and what it starts, with mounts of their own: a copy of those that are there now. What they mount is seen by
/// nobody else, and the kernel undoes it when the last of them has ended, even if they are killed. What is mounted elsewhere in
/// the meantime, automounts included, is not seen by them.
///
/// # Errors
/// `EPERM` without the right to mount; `EINVAL` where the root folder is no mount point.
pub fn in_private_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_a_thread(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
        // A copy of a mount is a peer of the original, to which mounts below it would propagate.
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
        Ok(work())
    })
}

/// A namespace belongs to a thread.
fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("mount".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that mounts has panicked")))
    })
}

/// Whether what is mounted here is what is mounted for the first process. Not, where that cannot be told: only root may look.
#[must_use]
pub fn is_host_namespace() -> bool {
    identity("/proc/1/ns/mnt").is_some_and(|first| Some(first) == identity(OWN))
}

/// The namespace of the first process, when it is not ours. In a changed root ours is the right one: its paths mean nothing
/// elsewhere.
fn other_namespace() -> Option<File> {
    if identity("/proc/1/ns/mnt")? == identity(OWN)? || identity("/proc/1/root/.")? != identity("/.")? {
        return None;
    }
    File::open("/proc/1/ns/mnt").ok()
}

/// Ours: that of the thread.
const OWN: &str = "/proc/thread-self/ns/mnt";

fn identity(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).map(|m| (m.dev(), m.ino())).ok()
}
