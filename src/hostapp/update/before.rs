//! What the running system is like before an update, for whoever compares it with the new one.

use std::ffi::OsStr;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::phase::files;
use crate::sys::file::{self, Content, Folder};
use crate::sys::systemd;

/// Units that were active, one a line, sorted.
const UNITS: &str = "units";

/// While the VPN is up. (The device's VPN scripts make it; `/var/run` leads to `/run`.)
const VPN_IS_UP: &str = "/run/openvpn/vpn_status/active";

/// Units of these kinds come and go with devices, logins and programs: they fail of nothing.
const PASSING: [&str; 3] = [".device", ".scope", ".slice"];

/// Keeps it on the state partition.
///
/// # Errors
/// `StateUnwritable`.
pub(super) fn keep(paths: &Paths) -> Result<()> {
    files::keep_vpn_state(paths, paths.at(VPN_IS_UP).exists())?;
    let units = if systemd::is_running(paths.root()) { active_units() } else { None };
    keep_units(paths, units.as_deref()).map_err(|e| {
        let path = paths.state_files().join(UNITS);
        Error::new(Code::StateUnwritable, format!("cannot change {}", path.display()))
            .object(path.display())
            .because(e)
    })
}

fn active_units() -> Option<String> {
    match systemd::active_units() {
        Ok(units) => {
            let lasting = units.iter().filter(|u| !PASSING.iter().any(|end| u.ends_with(end)));
            Some(lasting.map(|u| format!("{u}\n")).collect())
        }
        Err(e) => {
            // The comparison is a report, not a condition.
            tracing::warn!("cannot tell which units are active: {e}");
            None
        }
    }
}

/// A list of an earlier update must not pass for one of this.
fn keep_units(paths: &Paths, units: Option<&str>) -> std::io::Result<()> {
    let state = Folder::open(&paths.state())?;
    let Some(own) = paths.state_files().file_name().map(OsStr::to_owned) else { return Ok(()) };
    if state.entry(&own)?.is_none() {
        file::make_folder(&state, &own)?;
    }
    let own = state.enter(&own)?;
    match units {
        Some(units) => file::replace(&own, UNITS.as_ref(), &Content::Bytes(units.as_bytes())).map(drop),
        None => file::remove(&own, UNITS.as_ref()).map(drop),
    }
}
