//! `copal rollback commit-hooks`: those that a cut, or a hook that rebooted, has kept from running.

use super::commit::due_hooks;
use super::{BootStateGuard, Context, Platform};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

/// Runs the commit hooks of the running system if they are due. To be called once the engine is there, which some of them talk to.
///
/// # Errors
/// `Busy`; `SlotUnknown` and the like.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    run_with(&Context::look(paths, &platform)?)
}

/// [`run`], wherever the ground is.
///
/// # Errors
/// As for [`run`].
pub fn run_with(context: &Context<'_>) -> Result<()> {
    let guard = BootStateGuard::wait_for(context, "copal rollback commit-hooks")?;
    let phase = context.observe()?.phase;
    if phase == Phase::Healthy {
        due_hooks(context);
    } else {
        tracing::info!("no commit hooks are run: {}", phase.meaning());
    }
    guard.release();
    Ok(())
}
