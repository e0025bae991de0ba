//! `copal rollback commit-hooks`: those that a cut, or a hook that rebooted, has kept from running.

use super::commit::due_hooks;
use super::{Ground, Outside, Turn};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

/// Runs the commit hooks of the running system if they are due. To be called once the engine is there, which some of them talk to.
///
/// # Errors
/// `Busy`; `SlotUnknown` and the like.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let outside = Outside::of(paths, conf);
    run_with(&Ground::look(paths, &outside)?)
}

/// [`run`], wherever the ground is.
///
/// # Errors
/// As for [`run`].
pub fn run_with(ground: &Ground<'_>) -> Result<()> {
    let turn = Turn::wait_for(ground, "copal rollback commit-hooks")?;
    let phase = ground.observe()?.phase;
    if phase == Phase::Healthy {
        due_hooks(ground);
    } else {
        tracing::info!("no commit hooks are run: {}", phase.meaning());
    }
    turn.release();
    Ok(())
}
