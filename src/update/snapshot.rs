//! State of the running system before an update. The health checks of the new system compare with it.

use crate::config::paths::Paths;
use crate::error::Result;
use crate::state::files::{Trial, UnitList};

/// Exists while the VPN is up: the device's VPN scripts create it (`/var/run` is a link to `/run`).
const VPN_IS_UP: &str = "/run/openvpn/vpn_status/active";

/// These units come and go with devices, logins and programs, without a failure.
const PASSING: [&str; 3] = [".device", ".scope", ".slice"];

#[must_use]
pub(crate) fn vpn_is_up(paths: &Paths) -> bool {
    paths.at(VPN_IS_UP).exists()
}

/// Saves the permanent ones of the active `units`, as those before the update `transaction`.
pub fn keep_units(paths: &Paths, transaction: &str, mut units: Vec<String>) -> Result<()> {
    units.retain(|u| !PASSING.iter().any(|end| u.ends_with(end)));
    UnitList { transaction: transaction.to_owned(), units }.write(paths)
}

/// `None` without a list of the update on trial. Shell releases save none and leave an earlier one, but then the trial is another: a new
/// system that finds no record of its trial gives it a new number.
pub fn kept_units(paths: &Paths) -> Result<Option<Vec<String>>> {
    let Some(list) = UnitList::read(paths)? else { return Ok(None) };
    let trial = Trial::read(paths)?;
    Ok(trial.filter(|t| t.transaction == list.transaction).map(|_| list.units))
}
