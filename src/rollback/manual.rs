//! Verdicts of the owner: over D-Bus, or by a verb.

use super::commit::{Proof, commit};
use super::finish::undo;
use super::roll_back::{Reason, roll_back};
use super::{BootStateGuard, Context, Platform, refused};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// An update that waited for its reboot, or had died, is undone; the running system stays.
    Undone,
}

/// Commits the running system without checks. Does nothing without a trial.
pub(crate) fn mark_good(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    mark_good_with(&Context::look(paths, &platform)?)
}

pub fn mark_good_with(context: &Context<'_>) -> Result<()> {
    let mut guard = BootStateGuard::take(context, "mark-good")?;
    guard.hold_shutdown(context, "copal");
    let observed = context.observe()?;
    match observed.phase {
        Phase::Trial => commit(context, guard, &observed, &Proof::Manual),
        Phase::Healthy => {
            guard.release();
            Ok(())
        }
        phase => Err(refused("commit the running system", phase)),
    }
}

/// From a trial, rolls back to the previous system and reboots; before the reboot of an update, undoes the update. A committed system is
/// never rolled back.
pub fn back(paths: &Paths, conf: &RollbackConf) -> Result<Back> {
    let platform = Platform::of(paths, conf);
    back_with(&Context::look(paths, &platform)?)
}

pub fn back_with(context: &Context<'_>) -> Result<Back> {
    let mut guard = BootStateGuard::take(context, "rollback")?;
    guard.hold_shutdown(context, "copal");
    let observed = context.observe()?;
    match observed.phase {
        Phase::Trial => Err(roll_back(context, guard, &observed, &Reason::Manual)),
        phase @ (Phase::Pending | Phase::Installing | Phase::Interrupted | Phase::Cleanup) => {
            // A reboot has ended every hook.
            let in_this_boot = phase != Phase::Cleanup;
            undo(context, in_this_boot.then_some(&*context.platform.end_hooks))?;
            guard.release();
            Ok(Back::Undone)
        }
        phase => Err(refused("roll back", phase)),
    }
}
