use zbus::wire::OwnedFd;

use super::bus::Object;
use super::{Bus, Inhibitor, SystemdError};

const LOGIND: Object<'_> = Object {
    service: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};

impl Bus {
    pub fn inhibit_shutdown(&self, who: &str, why: &str) -> Result<Inhibitor, SystemdError> {
        self.run(async |calls| {
            let answer = calls.call(LOGIND, "Inhibit", &("shutdown", who, why, "block")).await?;
            let descriptor: OwnedFd = answer.body().deserialize()?;
            Ok(Inhibitor { descriptor: descriptor.into() })
        })
    }
}
