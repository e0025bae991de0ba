//! Change events of files and folders (inotify), instead of polling.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::uevent::readable;

#[derive(Debug)]
pub struct Watch(Inotify);

impl Watch {
    pub fn new() -> io::Result<Self> {
        Ok(Watch(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?))
    }

    /// Files that are created, removed or written in a folder. A repeated call has no effect.
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

    /// A file that is closed. A repeated call has no effect.
    pub(crate) fn closing(&self, path: &Path) -> io::Result<()> {
        self.0.add_watch(path, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_CLOSE_NOWRITE)?;
        Ok(())
    }

    pub fn forget(&self) {
        while matches!(self.0.read_events(), Ok(_) | Err(Errno::EINTR)) {}
    }

    /// Waits for an event until `deadline`; returns whether there was one.
    pub fn wait(&self, deadline: Instant) -> io::Result<bool> {
        readable(self.0.as_fd(), deadline)
    }
}
