//! `rollback-health`: the trial, and whatever an interrupted one has left.

use super::{BootStateGuard, Context, Platform, altboot, boot_check, trial};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

/// Takes minutes on trial. In other phases completes what no other program has done.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    run_with(&Context::look(paths, &platform)?, conf)
}

pub fn run_with(context: &Context<'_>, conf: &RollbackConf) -> Result<()> {
    match context.observe()?.phase {
        Phase::Trial => trial::run(context, conf),
        Phase::Altboot => stand_in(context, conf),
        // Normally the boot check has done this.
        Phase::Cleanup | Phase::Finishing | Phase::RollingBack => boot_check::run_with(context),
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

/// Gives `rollback-altboot` time to act, then does its work.
fn stand_in(context: &Context<'_>, conf: &RollbackConf) -> Result<()> {
    tracing::info!(
        "the bootloader fell back from the other slot; waiting {} s for rollback-altboot",
        conf.altboot_timeout.as_secs()
    );
    (context.platform.wait)(conf.altboot_timeout);
    let guard = BootStateGuard::wait_for(context, "rollback-health")?;
    let observed = context.observe()?;
    if observed.phase != Phase::Altboot {
        guard.release();
        return Ok(());
    }
    tracing::error!("rollback-altboot has not acted");
    Err(altboot::act(context, &observed, guard))
}
