//! `rollback-health`: the trial, and what is left of one.

use super::{Ground, Outside, Turn, altboot, boot_check, trial};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

/// Tries a system that is on trial, to its verdict; takes minutes. In other phases it does what nobody else has done.
///
/// # Errors
/// `PreviousTooOld`; those of the verdict; the device does not reboot.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let outside = Outside::of(paths, conf);
    run_with(&Ground::look(paths, &outside)?, conf)
}

/// [`run`], wherever the ground is.
///
/// # Errors
/// As for [`run`].
pub fn run_with(ground: &Ground<'_>, conf: &RollbackConf) -> Result<()> {
    match ground.observe()?.phase {
        Phase::Trial => trial::run(ground, conf),
        Phase::Altboot => stand_in(ground, conf),
        // The boot check has been here before, unless the system has none.
        Phase::Leftovers | Phase::Finishing | Phase::GoingBack => boot_check::run_with(ground),
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
fn stand_in(ground: &Ground<'_>, conf: &RollbackConf) -> Result<()> {
    tracing::info!(
        "the bootloader gave up on the other slot; rollback-altboot follows it, for {} s",
        conf.altboot_patience.as_secs()
    );
    (ground.outside.wait)(conf.altboot_patience);
    let turn = Turn::wait_for(ground, "rollback-health")?;
    let seen = ground.observe()?;
    if seen.phase != Phase::Altboot {
        turn.release();
        return Ok(());
    }
    tracing::error!("rollback-altboot has not acted");
    Err(altboot::act(ground, &seen, turn))
}
