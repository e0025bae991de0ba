//! The root file system of a slot that is not running, mounted beside the running one.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::sys::command::{Command, Event, Stream, because, keep};
use crate::sys::mount;

/// For mounting a root: milliseconds on a device that works.
const MOUNTING: Duration = Duration::from_secs(120);

/// For programs that still use it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A mounted root. It is unmounted by its owner, on every path.
#[derive(Debug)]
#[must_use = "it stays mounted"]
pub struct MountedRoot {
    path: PathBuf,
}

impl MountedRoot {
    /// Has `init`, which knows how the engine stores layers, mount the current hostapp of the slot at `sysroot`. It says on its
    /// standard output where that is (mobynit, `cmd/mobynit/main.go`).
    ///
    /// # Errors
    /// `init` cannot be run or fails, or says nothing sensible.
    pub fn mount(init: &Path, sysroot: &Path) -> io::Result<MountedRoot> {
        let command = Command::new(init).arg("-sysroot").arg(sysroot).apart().limit(Some(MOUNTING));
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
            return Err(io::Error::other(format!("init says it is at {:?}", printed.trim())));
        }
        Ok(MountedRoot { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts it, or takes it out of sight while a program still uses it.
    pub fn unmount(self) {
        let Err(e) = mount::unmount(&self.path, TIMEOUT) else { return };
        let users = mount::users(&self.path).join(" ");
        tracing::warn!("cannot unmount {} yet: {e}; in use by {users}", self.path.display());
        self.detach();
    }

    /// Takes it out of sight at once, with everything that is mounted below it.
    pub fn detach(self) {
        if let Err(e) = mount::detach(&self.path) {
            tracing::warn!("cannot detach {}: {e}", self.path.display());
        }
    }
}
