//! systemd and logind, over D-Bus.
//!
//! Blocking calls that always come back: every exchange with the bus has a limit, because a bus or a service that hangs
//! must not keep a device from being flashed. The bus is the system's, or the one at `DBUS_SYSTEM_BUS_ADDRESS`. Each call
//! makes a connection of its own: they are rare, and nothing is left that could break between them.

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

/// Whether systemd manages the system below `root`: what `sd_booted(3)` looks at.
#[must_use]
pub fn is_running(root: &Path) -> bool {
    root.join("run/systemd/system").is_dir()
}

/// What came of waiting for a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    /// This unit, by the name it was asked for, is active.
    Active(String),
    /// systemd can load none of the units: there is nothing to wait for.
    NoneKnown,
    /// Known units have failed, or are inactive with no job for them: none becomes active by itself any more.
    NoneComing,
    /// None became active in time.
    TimedOut,
    /// There is no bus, systemd does not answer on it, or it went away meanwhile, and why.
    NoBus(String),
}

/// Waits until one of `units` (full names, such as `openvpn.service`) is active, at most `timeout`. Starts nothing.
/// Returns at once when waiting cannot help: see [`Waited`].
#[must_use]
pub fn wait_for_active(units: &[&str], timeout: Duration) -> Waited {
    Bus::system().wait_for_active(units, timeout)
}

/// Asks logind not to shut down, in the name of `who` and because of `why`, both shown by `systemd-inhibit --list`.
/// `None` where there is no logind or it does not grant it, which stops nothing: the lock never binds root on older
/// releases, and is a courtesy to people at the device.
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

/// Powers the system off; returns once systemd has taken the request.
///
/// # Errors
/// systemd cannot be reached, does not answer, or refuses.
pub fn power_off() -> Result<(), SystemdError> {
    Bus::system().end(Shutdown::PowerOff)
}

/// Restarts the system; returns once systemd has taken the request.
///
/// # Errors
/// As [`power_off`].
pub fn reboot() -> Result<(), SystemdError> {
    Bus::system().end(Shutdown::Reboot)
}

/// Restarts the system without stopping services: every process is killed, and file systems are unmounted. Returns once systemd has
/// taken the request.
///
/// # Errors
/// As [`power_off`].
pub fn reboot_by_force() -> Result<(), SystemdError> {
    Bus::system().end_by_force(Shutdown::Reboot)
}

/// A lock against shutting down. It lasts as long as this value, and no longer than the process.
#[derive(Debug)]
#[must_use = "the lock ends with this value"]
pub struct Inhibitor {
    descriptor: OwnedFd,
}

impl Inhibitor {
    /// Ends the lock. Due before anything that may restart the device itself: newer releases of logind hold root to it.
    pub fn release(self) {
        drop(self.descriptor);
    }
}

/// Why systemd or logind did not do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SystemdError {
    /// No bus, or none that works, or a service that is not on it.
    Unreachable(String),
    /// No answer in this time.
    Silent(Duration),
    /// The request was answered with this error (its D-Bus name), and its text.
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
