//! Powering off and restarting.

use super::bus::SYSTEMD;
use super::{Bus, SystemdError};
use crate::sys::power::Shutdown;

impl Bus {
    /// Ends the system; returns once systemd has taken the request.
    ///
    /// Not by logind, which would refuse while somebody else holds an inhibitor lock, but the way it is done behind it:
    /// a job for the target, which stops services in order. systemd's methods named after the endings stop none, and
    /// are taken only where the target cannot be started.
    ///
    /// # Errors
    /// systemd cannot be reached, does not answer, or refuses both.
    pub fn end(&self, ending: Shutdown) -> Result<(), SystemdError> {
        let method = method(ending);
        let target = match ending {
            Shutdown::PowerOff => "poweroff.target",
            Shutdown::Reboot => "reboot.target",
        };
        self.run(async |calls| {
            match calls.call(SYSTEMD, "StartUnit", &(target, "replace-irreversibly")).await {
                Err(SystemdError::Refused(name, text)) => {
                    tracing::debug!("{target} cannot be started: {text} ({name})");
                    calls.call(SYSTEMD, method, &()).await.map(drop)
                }
                // Whether a request without an answer is being carried out is not known: no second one.
                other => other.map(drop),
            }
        })
    }

    /// Ends the system without stopping services: what `systemctl --force` does.
    ///
    /// # Errors
    /// systemd cannot be reached, does not answer, or refuses.
    pub fn end_by_force(&self, ending: Shutdown) -> Result<(), SystemdError> {
        self.run(async |calls| calls.call(SYSTEMD, method(ending), &()).await.map(drop))
    }
}

/// systemd's method for an end without a job for each service.
fn method(ending: Shutdown) -> &'static str {
    match ending {
        Shutdown::PowerOff => "PowerOff",
        Shutdown::Reboot => "Reboot",
    }
}
