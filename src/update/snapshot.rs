//! State of the running system before an update. The health checks of the new system compare with it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use crate::config::paths::Paths;
use crate::state::files;
use crate::sys::file::{self, Content, Folder};

const UNITS: &str = "units";

const LARGEST: u64 = 1 << 20; // bytes

/// Exists while the VPN is up: the device's VPN scripts create it (`/var/run` is a link to `/run`).
const VPN_IS_UP: &str = "/run/openvpn/vpn_status/active";

/// These units come and go with devices, logins and programs, without a failure.
const PASSING: [&str; 3] = [".device", ".scope", ".slice"];

#[must_use]
pub(crate) fn vpn_is_up(paths: &Paths) -> bool {
    paths.at(VPN_IS_UP).exists()
}

/// Saves the permanent ones of the active `units`. Without units, or after an error, there is no list: one of an earlier update must
/// not be taken for it. To be called after [`files::keep_vpn_state`]: see [`kept_units`].
pub fn keep_units(paths: &Paths, units: Option<&[String]>) -> io::Result<()> {
    let state = Folder::open(&paths.state())?;
    let Some(own) = paths.state_files().file_name().map(OsStr::to_owned) else { return Ok(()) };
    if state.entry(&own)?.is_none() {
        file::make_folder(&state, &own)?;
    }
    let own = state.enter(&own)?;
    // Removed first, since an equal list would not be rewritten, and would look older than this update.
    file::remove(&own, UNITS.as_ref())?;
    let Some(units) = units else { return Ok(()) };
    let lasting = units.iter().filter(|u| !PASSING.iter().any(|end| u.ends_with(end)));
    let text: String = lasting.map(|u| format!("{u}\n")).collect();
    file::replace(&own, UNITS.as_ref(), &Content::Bytes(text.as_bytes())).map(drop)
}

/// `None` where this update saved no list. Shell releases save none and leave an earlier one, but they rewrite the state of the VPN: a
/// list older than that is not of this update.
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
