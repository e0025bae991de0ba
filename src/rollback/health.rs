//! `rollback-health`: the trial, and what is left of one.

use super::{BootStateGuard, Context, Platform, altboot, boot_check, trial};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

/// Tries a system that is on trial, to its verdict; takes minutes. In other phases it does what nobody else has done.
///
/// # Errors
/// `PreviousTooOld`; those of the verdict; the device does not reboot.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    run_with(&Context::look(paths, &platform)?, conf)
}

/// [`run`], wherever the ground is.
///
/// # Errors
/// As for [`run`].
pub fn run_with(context: &Context<'_>, conf: &RollbackConf) -> Result<()> {
    match context.observe()?.phase {
        Phase::Trial => trial::run(context, conf),
        Phase::Altboot => stand_in(context, conf),
        // The boot check has been here before, unless the system has none.
        Phase::Leftovers | Phase::Finishing | Phase::RollingBack => boot_check::run_with(context),
        phase @ (Phase::RolledBack
        | Phase::Healthy
        | Phase::Installing
        | Phase::Pending
        | Phase::Interrupted) => {
            tracing::info!("nothing to do for rollback-health: {}", phase.meaning());
            Ok(())
        }
    }
}

/// `rollback-altboot` is about to act. If it does not, its work is done here.
fn stand_in(context: &Context<'_>, conf: &RollbackConf) -> Result<()> {
    tracing::info!(
        "the bootloader gave up on the other slot; rollback-altboot follows it, for {} s",
        conf.altboot_timeout.as_secs()
    );
    (context.platform.wait)(conf.altboot_timeout);
    let guard = BootStateGuard::wait_for(context, "rollback-health")?;
    let seen = context.observe()?;
    if seen.phase != Phase::Altboot {
        guard.release();
        return Ok(());
    }
    tracing::error!("rollback-altboot has not acted");
    Err(altboot::act(context, &seen, guard))
}
