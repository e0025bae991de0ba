//! What the running system was like before an update: looked at when one begins, compared with by the health checks of the
//! system that it installs.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use crate::config::paths::Paths;
use crate::state::files;
use crate::sys::file::{self, Content, Folder};

/// Units that were active, one a line, sorted.
const UNITS: &str = "units";

/// Most bytes of that list.
const LARGEST: u64 = 1 << 20;

/// While the VPN is up. (The device's VPN scripts make it; `/var/run` leads to `/run`.)
const VPN_IS_UP: &str = "/run/openvpn/vpn_status/active";

/// Units of these kinds come and go with devices, logins and programs: they fail of nothing.
const PASSING: [&str; 3] = [".device", ".scope", ".slice"];

/// Whether the VPN is up now.
#[must_use]
pub fn vpn_is_up(paths: &Paths) -> bool {
    paths.at(VPN_IS_UP).exists()
}

/// Keeps those of the active `units` that are there to stay; with none, or an error, no list, since one of an earlier update must
/// not pass for one of this. To be called after [`files::keep_vpn_state`]: see [`kept_units`].
///
/// # Errors
/// The state partition cannot be changed.
pub fn keep_units(paths: &Paths, units: Option<&[String]>) -> io::Result<()> {
    let state = Folder::open(&paths.state())?;
    let Some(own) = paths.state_files().file_name().map(OsStr::to_owned) else { return Ok(()) };
    if state.entry(&own)?.is_none() {
        file::make_folder(&state, &own)?;
    }
    let own = state.enter(&own)?;
    // Also one that says the same: a list that is as it was is not written anew, and would pass for one of the update before.
    file::remove(&own, UNITS.as_ref())?;
    let Some(units) = units else { return Ok(()) };
    let lasting = units.iter().filter(|u| !PASSING.iter().any(|end| u.ends_with(end)));
    let text: String = lasting.map(|u| format!("{u}\n")).collect();
    file::replace(&own, UNITS.as_ref(), &Content::Bytes(text.as_bytes())).map(drop)
}

/// The units that were active before the update; `None` where no list was kept for it.
///
/// Releases that update by the shell scripts keep no list, and leave an earlier one where it is. But they do write the state of
/// the VPN anew: a list that is older than that is not of this update.
///
/// # Errors
/// There is a list, and it cannot be read.
pub fn kept_units(paths: &Paths) -> io::Result<Option<Vec<String>>> {
    let path = paths.state_files().join(UNITS);
    let found = |e: io::Error| if e.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(e) };
    let written = match fs::metadata(&path) {
        Ok(list) => (list.mtime(), list.mtime_nsec()),
        Err(e) => return found(e),
    };
    if files::vpn_state_kept_at(paths).is_none_or(|begun| written < begun) {
        return Ok(None);
    }
    match file::read_text(&path, LARGEST) {
        Ok(text) => Ok(Some(text.lines().map(str::to_owned).collect())),
        Err(e) => found(e),
    }
}
