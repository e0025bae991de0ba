//! Saves the state of the running system, for a comparison with the new one.

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::state::files;
use crate::sys::systemd;
use crate::update::snapshot;

pub(super) fn keep(paths: &Paths) -> Result<()> {
    files::keep_vpn_state(paths, snapshot::vpn_is_up(paths))?;
    let units = if systemd::is_running(paths.root()) { active_units() } else { None };
    snapshot::keep_units(paths, units.as_deref()).map_err(|e| {
        let path = paths.state_files();
        Error::new(Code::StateUnwritable, format!("cannot keep the list of units in {}", path.display()))
            .object(path.display())
            .because(e)
    })
}

fn active_units() -> Option<Vec<String>> {
    // Optional: the comparison is only a report.
    systemd::active_units().inspect_err(|e| tracing::warn!("cannot list the active units: {e}")).ok()
}
