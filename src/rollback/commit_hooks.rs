//! `copal rollback commit-hooks`: runs commit hooks that a power cut, or a hook that rebooted, has interrupted.

use super::commit::due_hooks;
use super::{BootStateGuard, Context, Platform};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

/// To be called once the engine runs: some hooks need it.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    run_with(&Context::look(paths, &platform)?)
}

pub fn run_with(context: &Context<'_>) -> Result<()> {
    let guard = BootStateGuard::wait_for(context, "copal rollback commit-hooks")?;
    let phase = context.observe()?.phase;
    if phase == Phase::Healthy {
        due_hooks(context);
    } else {
        tracing::info!("running no commit hooks: {}", phase.meaning());
    }
    guard.release();
    Ok(())
}
