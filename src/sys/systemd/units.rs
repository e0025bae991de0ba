//! Which units are active, and which have failed.

use zbus::wire::OwnedObjectPath;

use super::bus::SYSTEMD;
use super::{Bus, SystemdError};

/// A row of `ListUnitsFiltered` (systemd 204 and newer): name, description, three states, followed unit, path, and job.
type Row = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

impl Bus {
    /// The names of all active units, sorted.
    ///
    /// # Errors
    /// systemd cannot be reached, does not answer, or refuses.
    pub fn active_units(&self) -> Result<Vec<String>, SystemdError> {
        self.units("active")
    }

    /// The names of all units that have failed, sorted.
    ///
    /// # Errors
    /// As [`Bus::active_units`].
    pub fn failed_units(&self) -> Result<Vec<String>, SystemdError> {
        self.units("failed")
    }

    fn units(&self, state: &str) -> Result<Vec<String>, SystemdError> {
        let mut names = self.run(async |calls| {
            let answer = calls.call(SYSTEMD, "ListUnitsFiltered", &(vec![state],)).await?;
            let rows: Vec<Row> = answer.body().deserialize()?;
            Ok(rows.into_iter().map(|row| row.0).collect::<Vec<String>>())
        })?;
        names.sort();
        Ok(names)
    }
}

/// [`Bus::active_units`] of the system.
///
/// # Errors
/// As there.
pub fn active_units() -> Result<Vec<String>, SystemdError> {
    Bus::system().active_units()
}

/// [`Bus::failed_units`] of the system.
///
/// # Errors
/// As there.
pub fn failed_units() -> Result<Vec<String>, SystemdError> {
    Bus::system().failed_units()
}
