//! `copal reboot`: what copal-reboot.service runs.

use crate::config::paths::Paths;
use crate::error::Result;
use crate::update::safe_reboot;

/// Returns only on failure.
pub(super) fn run_reboot() -> Result<()> {
    Err(safe_reboot::in_this_process(&Paths::default()))
}
