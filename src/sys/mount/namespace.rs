//! Runs work in another mount namespace: the system's, or a private one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::thread;

use nix::mount::MsFlags;
use nix::sched::{CloneFlags, setns, unshare};

/// Runs `work` in the mount namespace of the first process, if that is another one with the same root; otherwise here. Mounts in a
/// service's own namespace are not visible to other processes.
pub(crate) fn in_host_namespace<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(namespace) = other_namespace() else { return work() };
    on_a_thread(|| {
        // A thread enters a mount namespace with its own root and working folder, which threads share by default.
        unshare(CloneFlags::CLONE_FS)?;
        setns(namespace, CloneFlags::CLONE_NEWNS)?;
        work()
    })
}

/// Runs `work`, and the processes that it starts, with a private copy of the present mounts. Their mounts are not visible to other
/// processes, and the kernel removes them when the last of these processes has ended, even by SIGKILL. They do not see later
/// mounts elsewhere, automounts included.
pub(crate) fn in_private_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    on_a_thread(|| {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
        // A copied mount is a peer of the original, to which mounts below it would propagate.
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>)?;
        Ok(work())
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("mount".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that mounts has panicked")))
    })
}

/// Whether this is the mount namespace of the first process. `false` where that is unknown: only root can read it.
#[must_use]
pub(crate) fn is_host_namespace() -> bool {
    identity("/proc/1/ns/mnt").is_some_and(|first| Some(first) == identity(OWN))
}

/// The namespace of the first process, if it is another one. Not in a changed root, whose paths have another meaning elsewhere.
fn other_namespace() -> Option<File> {
    if identity("/proc/1/ns/mnt")? == identity(OWN)? || identity("/proc/1/root/.")? != identity("/.")? {
        return None;
    }
    File::open("/proc/1/ns/mnt").ok()
}

const OWN: &str = "/proc/thread-self/ns/mnt";

fn identity(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).map(|m| (m.dev(), m.ino())).ok()
}
