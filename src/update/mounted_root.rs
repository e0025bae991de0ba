//! The root file system of the inactive slot, mounted beside the running one.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::sys::command::{Command, Event, Stream, because, keep};
use crate::sys::mount;

/// A working device needs milliseconds.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(120);

const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// The owner of the value unmounts it, on every path.
#[derive(Debug)]
#[must_use = "it stays mounted"]
pub struct MountedRoot {
    path: PathBuf,
}

impl MountedRoot {
    /// Has `init`, which knows the engine's storage format, mount the current hostapp of the slot at `sysroot`. It prints the mount point on
    /// standard output (mobynit, `cmd/mobynit/main.go`).
    pub fn mount(init: &Path, sysroot: &Path) -> io::Result<MountedRoot> {
        let command = Command::new(init).arg("-sysroot").arg(sysroot).apart().limit(Some(MOUNT_TIMEOUT));
        let mut running = command.start()?;
        let (mut printed, mut last) = (String::new(), String::new());
        let end = loop {
            match running.next(None)? {
                Event::Line(Stream::Out, line) => printed = line,
                Event::Line(Stream::Err, line) => {
                    tracing::debug!("init: {line}");
                    keep(&mut last, &line);
                }
                Event::Ended(end) => break end,
                Event::Silent(_) | Event::Waited => {}
            }
        };
        if !end.is_success() {
            return Err(because(end, &last));
        }
        let path = PathBuf::from(printed.trim());
        if !path.is_absolute() || !path.is_dir() || path == Path::new("/") {
            return Err(io::Error::other(format!(
                "init printed {:?}, which is no mount point",
                printed.trim()
            )));
        }
        Ok(MountedRoot { path })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn unmount(self) {
        let Err(e) = mount::unmount(&self.path, UNMOUNT_TIMEOUT) else { return };
        let users = mount::users(&self.path).join(" ");
        tracing::warn!("cannot unmount {}: {e}; in use by {users}; detaching it", self.path.display());
        self.detach();
    }

    /// Detaches it at once, with all mounts below it.
    pub fn detach(self) {
        if let Err(e) = mount::detach(&self.path) {
            tracing::warn!("cannot detach {}: {e}", self.path.display());
        }
    }
}
