//! `copal reboot`: what copal-reboot.service runs.

use super::refuse_without_root;
use crate::config::paths::Paths;
use crate::error::Result;
use crate::update::safe_reboot;

/// Returns only on failure.
pub(super) fn run_reboot() -> Result<()> {
    let paths = Paths::default();
    refuse_without_root("copal reboot", paths.root())?;
    Err(safe_reboot::in_this_process(&paths))
}
