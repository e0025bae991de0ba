//! Saves the state of the running system, for a comparison with the new one.

use crate::config::paths::Paths;
use crate::error::Result;
use crate::state::files::{self, UnitList};
use crate::sys::systemd;
use crate::update::snapshot;

pub(super) fn keep(paths: &Paths, transaction: &str) -> Result<()> {
    files::keep_vpn_state(paths, snapshot::vpn_is_up(paths))?;
    snapshot::keep_device_tree(paths, transaction)?;
    match systemd::is_running(paths.root()).then(systemd::active_units) {
        Some(Ok(units)) => snapshot::keep_units(paths, transaction, units),
        // Optional: the comparison is only a report.
        Some(Err(e)) => {
            tracing::warn!("cannot list the active units: {e}");
            UnitList::remove(paths)
        }
        None => UnitList::remove(paths),
    }
}
