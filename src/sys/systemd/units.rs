use zbus::wire::OwnedObjectPath;

use super::bus::SYSTEMD;
use super::{Bus, SystemdError};

/// A row of `ListUnitsFiltered` (systemd 204 and newer) and `ListUnitsByNames` (230): name, description, three states, followed unit, path,
/// and job.
type Row = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);

impl Bus {
    pub fn active_units(&self) -> Result<Vec<String>, SystemdError> {
        self.units("active")
    }

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

    /// Returns once systemd has accepted the request.
    pub(crate) fn start_unit(&self, unit: &str) -> Result<(), SystemdError> {
        self.run(async |calls| calls.call(SYSTEMD, "StartUnit", &(unit, "fail")).await.map(drop))
    }

    /// Sends SIGTERM to the main process. Unlike a stop of the unit, this has no time limit.
    pub(crate) fn terminate(&self, unit: &str) -> Result<(), SystemdError> {
        let arguments = (unit, "main", nix::libc::SIGTERM);
        self.run(async |calls| calls.call(SYSTEMD, "KillUnit", &arguments).await.map(drop))
    }

    /// Whether the unit neither runs nor is about to.
    pub(crate) fn is_inactive(&self, unit: &str) -> Result<bool, SystemdError> {
        self.run(async |calls| {
            let answer = calls.call(SYSTEMD, "ListUnitsByNames", &(vec![unit],)).await?;
            let rows: Vec<Row> = answer.body().deserialize()?;
            let rests = |row: &Row| matches!(row.3.as_str(), "inactive" | "failed") && row.7 == 0;
            Ok(rows.iter().all(rests))
        })
    }
}

pub fn active_units() -> Result<Vec<String>, SystemdError> {
    Bus::system().active_units()
}

pub fn failed_units() -> Result<Vec<String>, SystemdError> {
    Bus::system().failed_units()
}
