//! A job as a unit of systemd.

use std::fs::{self, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use super::files::{EndRecord, JobFiles};
use super::{JobRequest, start_lock};
use crate::error::{Code, Error, Result};
use crate::sys::systemd::{Bus, SystemdError};

/// The start conflicts with a stop that systemd carries out: a shutdown, for all units with default dependencies (systemd.service(5)).
const DESTRUCTIVE: &str = "org.freedesktop.systemd1.TransactionIsDestructive";

pub(crate) enum NotStarted {
    Refused(Error),
    /// No job was started: systemd is unreachable or does not know the unit.
    Unavailable(SystemdError),
}

impl From<NotStarted> for Error {
    fn from(why: NotStarted) -> Error {
        match why {
            NotStarted::Refused(e) => e,
            NotStarted::Unavailable(e) => {
                Error::new(Code::BusUnreachable, "cannot start a job: systemd does not start its unit")
                    .object("copal-job@.service")
                    .because(e)
            }
        }
    }
}

impl JobFiles {
    pub(crate) fn start(&self, request: &JobRequest) -> Result<(), NotStarted> {
        self.prepare(request)?;
        self.start_unit()
    }

    pub(super) fn prepare(&self, request: &JobRequest) -> Result<(), NotStarted> {
        self.remove();
        self.write(request).inspect_err(|_| self.remove()).map_err(|e| {
            let text = format!("cannot write the request of {}", self.unit());
            NotStarted::Refused(Error::new(Code::Io, text).object(self.folder.display()).because(e))
        })
    }

    pub(super) fn start_unit(&self) -> Result<(), NotStarted> {
        match Bus::system().start_unit(&self.unit()) {
            Ok(()) => Ok(()),
            // The job runs. Only the answer is lost: systemd was slow, or left the bus.
            Err(_) if !self.withdraw() => Ok(()),
            Err(e) => {
                self.remove();
                Err(match e {
                    SystemdError::Refused(name, why) if name == DESTRUCTIVE => {
                        NotStarted::Refused(self.shutting_down(&why))
                    }
                    e => NotStarted::Unavailable(e),
                })
            }
        }
    }

    /// The caller's process must not do the work either: it would be ended in the middle of it.
    fn shutting_down(&self, why: &str) -> Error {
        Error::new(Code::Busy, "cannot begin: systemd is ending the system, or a service of the job")
            .object(self.unit())
            .because(why)
            .with_hint("try again when the system has started")
    }

    /// The job ends between two of its steps, or does not begin.
    pub(crate) fn cancel(&self) -> Result<()> {
        let cancelled = if self.withdraw() {
            self.write_end(&EndRecord { status: None, signal: Some(Signal::SIGTERM as i32) })
        } else {
            Bus::system().terminate(&self.unit()).map_err(io::Error::other)
        };
        cancelled.map_err(|e| {
            let text = "cannot cancel the job: systemd does not end its process";
            Error::new(Code::BusUnreachable, text).object(self.unit()).because(e)
        })
    }

    /// Records the end of a job whose unit is gone without a record: systemd failed to start the unit, or to run its `ExecStopPost=`.
    pub(crate) fn settle(&self) -> Result<(), SystemdError> {
        let unreachable = |e: io::Error| SystemdError::Unreachable(e.to_string());
        // While another process starts a job, the unit may be inactive because it is not started yet.
        let lock = start_lock::open(&self.folder).map_err(unreachable)?;
        match lock.try_lock() {
            Ok(()) => self.settle_locked(),
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Error(e)) => Err(unreachable(e)),
        }
    }

    pub(super) fn settle_locked(&self) -> Result<(), SystemdError> {
        if self.end().is_some() {
            return Ok(());
        }
        let is_gone = match Bus::system().is_inactive(&self.unit()) {
            Ok(is_inactive) => is_inactive,
            // The bus may be away for long, and no update can begin meanwhile. A request that was not taken may belong to a unit that waits.
            Err(e)
                if self.request().exists() || has_control_group(Path::new(CONTROL_GROUPS), &self.unit()) =>
            {
                return Err(e);
            }
            Err(e) => {
                tracing::debug!("{}: {e}; no control group has its name", self.unit());
                true
            }
        };
        if is_gone {
            self.forget_secrets();
            self.write_end(&EndRecord::default()).map_err(|e| SystemdError::Unreachable(e.to_string()))?;
        }
        Ok(())
    }
}

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Whether a unit of the system may have processes: systemd removes the directory of its control group with the last one. `true` where this cannot be
/// seen. Units of a template are in a slice of their own (systemd.slice(5)), and cgroup v1 has a hierarchy for systemd.
fn has_control_group(top: &Path, unit: &str) -> bool {
    let tops: Vec<PathBuf> = ["", "systemd", "unified"]
        .iter()
        .map(|name| top.join(name).join("system.slice"))
        .filter(|top| top.is_dir())
        .collect();
    let is_there = |slice: &PathBuf| {
        let Ok(entries) = fs::read_dir(slice) else { return true };
        let slices = entries.flatten().map(|entry| entry.path());
        slices
            .filter(|path| path.extension().is_some_and(|end| end == "slice"))
            .chain([slice.clone()])
            .any(|path| path.join(unit).exists())
    };
    tops.is_empty() || tops.iter().any(is_there)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_without_a_control_group_has_no_processes() {
        let dir = tempfile::tempdir().unwrap();
        let has = || has_control_group(dir.path(), "copal-job@7.service");
        assert!(has(), "without control groups nothing is known");
        for (version, slice) in [("", "system.slice"), ("systemd", "system.slice/system-copal\\x2djob.slice")]
        {
            let slice = dir.path().join(version).join(slice);
            fs::create_dir_all(slice.join("copal-job@6.service")).unwrap();
            assert!(!has());
            fs::create_dir(slice.join("copal-job@7.service")).unwrap();
            assert!(has());
            fs::remove_dir(slice.join("copal-job@7.service")).unwrap();
        }
    }
}
