//! Update locks: a service holds one while a process has an exclusive lock (`flock(2)`) on its `updates.lock`; the file alone means
//! nothing. The supervisor creates the folders, and records whether the owner overrides locks.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::libc;

use crate::config::paths::Paths;
use crate::sys::file::read_record;
use crate::sys::watch::Watch;

const SERVICES: &str = "/tmp/balena-supervisor/services";
const TARGET_STATE: &str = "/tmp/balena-supervisor/target-state-config";
/// Limit in bytes of that record, which has the configuration variables of the device.
const MAX_STATE_BYTES: u64 = 1 << 20;
const LOCK: &str = "updates.lock";
/// The first that is set counts; the second name is older.
const OVERRIDES: [&str; 2] = ["SUPERVISOR_OVERRIDE_LOCK", "RESIN_OVERRIDE_LOCK"];

pub(super) struct Services {
    folder: PathBuf,
    config: PathBuf,
}

pub(super) enum Look {
    Free,
    /// The first lock found; there may be others.
    HeldLock(HeldLock),
}

pub(super) struct HeldLock {
    pub(super) path: PathBuf,
    /// Why the state is unknown. Such a lock counts as held.
    pub(super) unknown: Option<io::Error>,
    file: Option<File>,
}

impl HeldLock {
    /// Unlike a look at all locks, this causes no event.
    pub(super) fn is_free_now(&self) -> bool {
        // Unlocking causes no event; closing the file, which would unlock it too, does.
        self.file.as_ref().is_some_and(|f| f.try_lock().is_ok() && f.unlock().is_ok())
    }
}

impl Services {
    pub(super) fn new(paths: &Paths) -> Self {
        Services { folder: paths.at(SERVICES), config: paths.at(TARGET_STATE) }
    }

    /// `watch` reports when that may have changed.
    pub(super) fn overridden(&self, watch: Option<&Watch>) -> bool {
        if let (Some(watch), Some(folder)) = (watch, self.config.parent()) {
            watched(watch.folder(folder), folder);
        }
        match read_record(&self.config, MAX_STATE_BYTES) {
            Ok(text) => is_override(&text),
            Err(e) => {
                tracing::debug!("{}: {e}", self.config.display());
                false
            }
        }
    }

    /// `watch` reports when a lock may have been released.
    pub(super) fn look(&self, watch: Option<&Watch>) -> Look {
        let mut locks = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            // Watch first, then read: no change is missed.
            if let Some(watch) = watch {
                watched(watch.folder(&folder), &folder);
            }
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(e) => {
                    tracing::debug!("{}: {e}", folder.display());
                    continue;
                }
            };
            for entry in entries.flatten() {
                // The type of the entry itself: a followed link could lead in circles.
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    folders.push(entry.path());
                }
                if entry.file_name() == LOCK {
                    locks.push(entry.path());
                }
            }
        }
        locks.sort();
        locks.into_iter().find_map(|path| test(path, watch)).map_or(Look::Free, Look::HeldLock)
    }
}

/// `None` when no process holds the lock, or the file is gone.
fn test(path: PathBuf, watch: Option<&Watch>) -> Option<HeldLock> {
    if let Some(watch) = watch {
        watched(watch.closing(&path), &path);
    }
    let file = match open(&path) {
        Ok(Some(file)) => file,
        Ok(None) => {
            tracing::warn!("{} leads to no regular file: it counts as free", path.display());
            return None;
        }
        // No other process can open it either.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP)) => {
            return None;
        }
        Err(e) => return Some(HeldLock { path, unknown: Some(e), file: None }),
    };
    match file.try_lock() {
        Ok(()) => None,
        Err(TryLockError::WouldBlock) => Some(HeldLock { path, unknown: None, file: Some(file) }),
        Err(TryLockError::Error(e)) => Some(HeldLock { path, unknown: Some(e), file: None }),
    }
}

/// `None` where it leads to anything but a regular file, which a service may have done: opening a device can have any effect, and so it is
/// opened only after it was looked at.
fn open(path: &Path) -> io::Result<Option<File>> {
    let there = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !there.metadata()?.is_file() {
        return Ok(None);
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = |path: &Path| OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match open(Path::new(&format!("/proc/self/fd/{}", there.as_raw_fd()))) {
        // Without /proc only the path is left, which may lead elsewhere by now: a held lock must not be taken for a free one.
        Err(e) if e.kind() == io::ErrorKind::NotFound => open(path)?,
        file => file?,
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

fn watched(result: io::Result<()>, path: &Path) {
    if let Err(e) = result {
        tracing::debug!("cannot watch {}: {e}", path.display());
    }
}

/// The first key that is set, and is neither `null` nor `false`, must be `true` or `"true"`.
fn is_override(text: &str) -> bool {
    let config: serde_json::Value = match serde_json::from_str(text) {
        Ok(config) => config,
        Err(e) => {
            tracing::debug!("target-state-config: {e}");
            return false;
        }
    };
    let is_set = |v: &&serde_json::Value| !v.is_null() && v.as_bool() != Some(false);
    let first = OVERRIDES.iter().filter_map(|key| config.get(key)).find(is_set);
    first.is_some_and(|v| v.as_bool() == Some(true) || v.as_str() == Some("true"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_is_no_file_delays_no_update() {
        let root = tempfile::tempdir().unwrap();
        let services = Services::new(&Paths::new(root.path()));
        fs::create_dir_all(services.config.parent().unwrap()).unwrap();
        nix::unistd::mkfifo(&services.config, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(!services.overridden(None));
        fs::remove_file(&services.config).unwrap();
        fs::write(&services.config, r#"{"RESIN_OVERRIDE_LOCK": true}"#).unwrap();
        assert!(services.overridden(None));
    }

    #[test]
    fn locks_are_overridden_by_either_key() {
        for (text, expected) in [
            (r#"{"SUPERVISOR_OVERRIDE_LOCK": true}"#, true),
            (r#"{"SUPERVISOR_OVERRIDE_LOCK": "true", "x": {}}"#, true),
            (r#"{"RESIN_OVERRIDE_LOCK": "true"}"#, true),
            (r#"{"SUPERVISOR_OVERRIDE_LOCK": false, "RESIN_OVERRIDE_LOCK": true}"#, true),
            (r#"{"SUPERVISOR_OVERRIDE_LOCK": null, "RESIN_OVERRIDE_LOCK": "true"}"#, true),
            (r#"{"SUPERVISOR_OVERRIDE_LOCK": "false", "RESIN_OVERRIDE_LOCK": true}"#, false),
            (r#"{"SUPERVISOR_OVERRIDE_LOCK": 1}"#, false),
            (r#"{"SUPERVISOR_OVERRIDE_LOCK": "True"}"#, false),
            (r#"{"config": {"SUPERVISOR_OVERRIDE_LOCK": true}}"#, false),
            (r#"{"SUPERVISOR_OVERRIDE_LOCK": tru"#, false),
            ("[]", false),
            ("", false),
        ] {
            assert_eq!(is_override(text), expected, "{text}");
        }
    }
}
