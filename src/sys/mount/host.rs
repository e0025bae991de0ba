//! Work in the mount namespace of the system itself: what is mounted in a service's own is seen by nobody else.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

/// Runs `work` where the first process has its mounts, if that is another place than ours and paths mean the same there;
/// otherwise here.
///
/// # Errors
/// Of `work`, and of the system calls that lead there.
pub fn in_host_namespace<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(namespace) = other_namespace() else { return work() };
    let there = || {
        // A namespace of mounts is entered by a whole root and working folder, which threads share until told otherwise.
        unshare(CloneFlags::CLONE_FS)?;
        setns(namespace, CloneFlags::CLONE_NEWNS)?;
        work()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("mount".into()).spawn_scoped(scope, there)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that mounts has panicked")))
    })
}

/// The namespace of the first process, when it is not ours. In a changed root ours is the right one: its paths mean nothing
/// elsewhere.
fn other_namespace() -> Option<File> {
    let identity = |path: &str| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    if identity("/proc/1/ns/mnt")? == identity("/proc/thread-self/ns/mnt")?
        || identity("/proc/1/root/.")? != identity("/.")?
    {
        return None;
    }
    File::open("/proc/1/ns/mnt").ok()
}
