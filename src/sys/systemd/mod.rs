//! systemd and logind, over D-Bus.
//!
//! Blocking calls that always return: every exchange has a limit, because a bus or a service that hangs must not stop a flash. The
//! bus is the system's, or the one at `DBUS_SYSTEM_BUS_ADDRESS`. Each call makes its own connection: calls are rare, and no
//! connection can break between them.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::power::Shutdown;

mod bus;
mod inhibit;
mod shutdown;
mod units;
mod wait;

pub use bus::Bus;
pub use units::{active_units, failed_units};

/// As `sd_booted(3)` checks it, below `root`.
#[must_use]
pub fn is_running(root: &Path) -> bool {
    root.join("run/systemd/system").is_dir()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    /// This unit, by its given name, is active.
    Active(String),
    /// systemd can load none of the units.
    NoneKnown,
    /// The known units have failed, or are inactive without a job: none becomes active by itself.
    NoneComing,
    TimedOut,
    /// There is no bus, systemd does not answer on it, or it failed meanwhile; the reason.
    NoBus(String),
}

/// Waits until one of `units` (full names, such as `openvpn.service`) is active, at most `timeout`. Starts nothing. Returns at once
/// when waiting cannot help: see [`Waited`].
#[must_use]
pub fn wait_for_active(units: &[&str], timeout: Duration) -> Waited {
    Bus::system().wait_for_active(units, timeout)
}

/// Asks logind not to shut down; `systemd-inhibit --list` shows `who` and `why`. `None` where logind is missing or refuses, which
/// is not a failure: on older releases the lock does not bind root, and only warns people at the device.
#[must_use]
pub fn inhibit_shutdown(who: &str, why: &str) -> Option<Inhibitor> {
    match Bus::system().inhibit_shutdown(who, why) {
        Ok(lock) => Some(lock),
        Err(e) => {
            tracing::debug!("no inhibitor lock: {e}");
            None
        }
    }
}

/// Returns once systemd has accepted the request.
pub fn power_off() -> Result<(), SystemdError> {
    Bus::system().end(Shutdown::PowerOff)
}

/// Returns once systemd has accepted the request.
pub fn reboot() -> Result<(), SystemdError> {
    Bus::system().end(Shutdown::Reboot)
}

/// Kills every process and unmounts file systems, without stopping services. Returns once systemd has accepted the request.
pub(crate) fn reboot_by_force() -> Result<(), SystemdError> {
    Bus::system().end_by_force(Shutdown::Reboot)
}

/// A lock against shutdown, as long as this value or the process exists.
#[derive(Debug)]
#[must_use = "the lock ends with this value"]
pub struct Inhibitor {
    descriptor: OwnedFd,
}

impl Inhibitor {
    /// Call it before anything that may reboot the device: newer releases of logind also apply the lock to root.
    pub fn release(self) {
        drop(self.descriptor);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SystemdError {
    /// No working bus, or the service is not on it.
    Unreachable(String),
    Silent(Duration),
    /// The D-Bus name of the error, and its text.
    Refused(String, String),
}

impl fmt::Display for SystemdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SystemdError::Unreachable(why) => write!(f, "D-Bus: {why}"),
            SystemdError::Silent(limit) => write!(f, "D-Bus: no answer in {limit:?}"),
            SystemdError::Refused(name, text) if text.is_empty() => write!(f, "D-Bus: {name}"),
            SystemdError::Refused(name, text) => write!(f, "D-Bus: {text} ({name})"),
        }
    }
}

impl std::error::Error for SystemdError {}
