//! The hook that runs now: a file in `/run/copal`, locked by the runner. Only the lock says that the file is current: forward hooks run
//! in a container, whose process numbers mean nothing outside, and whose runner may be killed with it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::list::{Hook, Phase};
use crate::config::paths::Paths;
use crate::sys::file::{make_private, open_record};

const RECORD_NAME: &str = "hook";

const MAX_RECORD_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningHook {
    pub name: String,
    /// `before`, `forward`, `after`, `commit` or `cleanup`.
    pub phase: String,
    /// Process number as the runner sees it: a container has its own numbers.
    pub pid: u32,
    pub since: String, // UTC, RFC 3339
}

/// An error only where this user may not know.
pub fn running(paths: &Paths) -> io::Result<Option<RunningHook>> {
    let file = match open_record(&paths.run_files().join(RECORD_NAME)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(e),
        Err(_) => return Ok(None),
    };
    Ok(match Flock::lock(file, FlockArg::LockSharedNonblock) {
        // No process holds the lock: the runner was killed.
        Ok(_) => None,
        Err((file, _)) => serde_json::from_reader(io::BufReader::new(file.take(MAX_RECORD_BYTES))).ok(),
    })
}

/// The file exists while this value lives. A hook runs also without it.
pub(super) struct Shown(Option<(PathBuf, Flock<File>)>);

impl Shown {
    pub(super) fn begin(paths: &Paths, hook: &Hook, pid: u32) -> Shown {
        let value = RunningHook {
            name: hook.name.clone(),
            phase: Phase::word(hook.phase).to_owned(),
            pid,
            since: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        };
        Shown(match write(&paths.run_files(), &value) {
            Ok(shown) => Some(shown),
            Err(e) => {
                tracing::debug!("{} cannot be shown as running: {e}", hook.name);
                None
            }
        })
    }
}

/// The file gets its name when it is complete and locked.
fn write(folder: &Path, value: &RunningHook) -> io::Result<(PathBuf, Flock<File>)> {
    make_private(folder)?;
    let path = folder.join(RECORD_NAME);
    let mut new = tempfile::Builder::new().prefix(".hook-").tempfile_in(folder)?;
    new.write_all(&serde_json::to_vec(value)?)?;
    let file = new.as_file().try_clone()?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| e)?;
    new.persist(&path).map_err(|e| e.error)?;
    Ok((path, lock))
}

impl Drop for Shown {
    fn drop(&mut self) {
        let Some((path, lock)) = self.0.take() else { return };
        let own = lock.metadata().map(|m| (m.dev(), m.ino())).ok();
        // Another runner may have replaced the file meanwhile.
        if fs::symlink_metadata(&path).map(|m| (m.dev(), m.ino())).ok() == own
            && let Err(e) = fs::remove_file(&path)
        {
            tracing::debug!("{} cannot be removed: {e}", path.display());
        }
    }
}
