//! State of the running system before an update. The health checks of the new system compare with it.

use crate::config::paths::Paths;
use crate::device_tree::live::NamedTree;
use crate::error::Result;
use crate::state::files::{DeviceTreeRecord, Trial, UnitList};

/// Exists while the VPN is up: the device's VPN scripts create it (`/var/run` is a link to `/run`).
const VPN_IS_UP: &str = "/run/openvpn/vpn_status/active";

/// How many properties of a device tree are kept: a few would do.
const MAX_PROPERTIES: usize = 256;

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

/// Saves by what the running kernel's device tree can be recognised, where the owner names it.
pub fn keep_device_tree(paths: &Paths, transaction: &str) -> Result<()> {
    let found_tree = NamedTree::of(paths).and_then(|named_tree| {
        named_tree.map(|named_tree| named_tree.found(paths).map(|found| (named_tree.path, found))).transpose()
    });
    match found_tree {
        Ok(Some((path, found))) => {
            let properties = found.into_iter().take(MAX_PROPERTIES).collect();
            DeviceTreeRecord { transaction: transaction.to_owned(), path, properties }.write(paths)
        }
        Ok(None) => DeviceTreeRecord::remove(paths),
        // The check of the new system says what it does not know.
        Err(why) => {
            tracing::info!("cannot find which device tree the kernel got: {why}");
            DeviceTreeRecord::remove(paths)
        }
    }
}

/// `None` without a list of the update on trial.
pub fn kept_units(paths: &Paths) -> Result<Option<Vec<String>>> {
    let Some(list) = UnitList::read(paths)? else { return Ok(None) };
    Ok(is_of_trial(paths, &list.transaction)?.then_some(list.units))
}

/// `None` without a record of the update on trial.
pub fn kept_device_tree(paths: &Paths) -> Result<Option<DeviceTreeRecord>> {
    let Some(record) = DeviceTreeRecord::read(paths)? else { return Ok(None) };
    Ok(is_of_trial(paths, &record.transaction)?.then_some(record))
}

/// Shell releases save nothing and leave what an earlier update has saved, but then the trial is another: a new system that finds no record
/// of its trial gives it a new number.
fn is_of_trial(paths: &Paths, transaction: &str) -> Result<bool> {
    Ok(Trial::read(paths)?.is_some_and(|trial| trial.transaction == transaction))
}
