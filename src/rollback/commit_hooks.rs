//! `copal rollback commit-hooks`: runs commit hooks again that a power cut, or a hook that rebooted, has interrupted. The record `commit-due`
//! says that there are some.

use super::commit::run_due_hooks;
use super::{BootStateGuard, Context, Platform};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

/// Its unit starts it after the container engine, which some hooks need.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    run_with(&Context::look(paths, &platform)?)
}

pub fn run_with(context: &Context<'_>) -> Result<()> {
    let guard = BootStateGuard::wait_for(context, "copal rollback commit-hooks")?;
    let phase = context.observe()?.phase;
    // In another phase the record stays for a later boot.
    if phase == Phase::Healthy {
        run_due_hooks(context);
    } else {
        tracing::info!("running no commit hooks: {}", phase.meaning());
    }
    guard.release();
    Ok(())
}
