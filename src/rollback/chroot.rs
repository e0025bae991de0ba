//! The hooks of the old system, run in its own root.

use crate::config::paths::Paths;
use crate::error::Result;
/// stub
pub fn run_old_hooks(_: &Paths) -> Result<()> {
    Ok(())
}
/// stub
pub fn deploy_old_boot_files(_: &Paths) -> Result<()> {
    Ok(())
}
