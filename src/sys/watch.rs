//! News of files and folders (inotify), so that nobody has to look again and again.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::uevent::readable;

/// What is watched.
#[derive(Debug)]
pub struct Watch(Inotify);

impl Watch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// As the operating system says: no descriptors left, for instance.
    pub fn new() -> io::Result<Self> {
        Ok(Watch(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?))
    }

    /// Watches what comes into a folder, goes from it, or is written there. Once more is no more.
    ///
    /// # Errors
    /// There is no such folder; no more watches are allowed.
    pub fn folder(&self, path: &Path) -> io::Result<()> {
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_DELETE_SELF;
        self.0.add_watch(path, changes | AddWatchFlags::IN_ONLYDIR)?;
        Ok(())
    }

    /// Watches whether somebody closes a file. Once more is no more.
    ///
    /// # Errors
    /// There is no such file; no more watches are allowed.
    pub fn closing(&self, path: &Path) -> io::Result<()> {
        self.0.add_watch(path, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_CLOSE_NOWRITE)?;
        Ok(())
    }

    /// Forgets what has happened so far.
    pub fn forget(&self) {
        while matches!(self.0.read_events(), Ok(_) | Err(Errno::EINTR)) {}
    }

    /// Waits until something happens, at most until `deadline`; whether it did.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn wait(&self, deadline: Instant) -> io::Result<bool> {
        readable(self.0.as_fd(), deadline)
    }
}
