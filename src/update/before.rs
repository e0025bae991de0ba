//! What the running system is like before an update, for whoever compares it with the new one.

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::state::files;
use crate::sys::systemd;
use crate::update::snapshot;

/// Keeps it on the state partition.
///
/// # Errors
/// `StateUnwritable`.
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
    // The comparison is a report, not a condition.
    systemd::active_units().inspect_err(|e| tracing::warn!("cannot tell which units are active: {e}")).ok()
}
