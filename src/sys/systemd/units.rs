use zbus::wire::OwnedObjectPath;

use super::bus::SYSTEMD;
use super::{Bus, SystemdError};

/// A row of `ListUnitsFiltered` (systemd 204 and newer): name, description, three states, followed unit, path, and job.
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
}

pub fn active_units() -> Result<Vec<String>, SystemdError> {
    Bus::system().active_units()
}

pub fn failed_units() -> Result<Vec<String>, SystemdError> {
    Bus::system().failed_units()
}
