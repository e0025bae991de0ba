use super::bus::SYSTEMD;
use super::{Bus, SystemdError};
use crate::sys::power::Shutdown;

impl Bus {
    /// Ends the system; returns once systemd has accepted the request.
    ///
    /// Not through logind, which refuses while another program holds an inhibitor lock, but as logind itself does it: by a job for the
    /// target, which stops services in order. systemd's methods `PowerOff` and `Reboot` stop none; they are used only where the target
    /// cannot be started.
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
                // Without an answer the request may still be in progress: no second one.
                other => other.map(drop),
            }
        })
    }

    /// Ends the system without stopping services, as `systemctl --force` does.
    pub fn end_by_force(&self, ending: Shutdown) -> Result<(), SystemdError> {
        self.run(async |calls| calls.call(SYSTEMD, method(ending), &()).await.map(drop))
    }
}

fn method(ending: Shutdown) -> &'static str {
    match ending {
        Shutdown::PowerOff => "PowerOff",
        Shutdown::Reboot => "Reboot",
    }
}
