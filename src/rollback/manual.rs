//! Verdicts of the owner: over D-Bus, or by a verb.

use super::commit::{Proof, commit};
use super::finish::undo;
use super::roll_back::{Reason, roll_back};
use super::{BootStateGuard, Context, Platform, refused};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::phase::Phase;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// An update that waited for its reboot, or had died, is undone: the running system stays.
    Undone,
}

/// Commits the running system, without checks. With nothing on trial there is nothing to do.
///
/// # Errors
/// `RollbackRefused` where committing would not keep the running system; `Busy`; those of committing.
pub fn mark_good(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    mark_good_with(&Context::look(paths, &platform)?)
}

/// [`mark_good`], wherever the ground is.
///
/// # Errors
/// As for [`mark_good`].
pub fn mark_good_with(context: &Context<'_>) -> Result<()> {
    let mut guard = BootStateGuard::take(context, "mark-good")?;
    guard.hold_shutdown(context, "copal");
    match context.observe()?.phase {
        Phase::Trial => commit(context, guard, &Proof::Manual),
        Phase::Healthy => {
            guard.release();
            Ok(())
        }
        phase => Err(refused("commit the running system", phase)),
    }
}

/// Goes back: from a system on trial to the one before it, which reboots; from an update that has not been started yet to the running
/// system. A system that was committed never goes back.
///
/// # Errors
/// `RollbackRefused`; `Busy`; those of going back; the device does not reboot. Those of the container engine when the update was undone, and
/// hooks of it that may still run could not be ended.
pub fn back(paths: &Paths, conf: &RollbackConf) -> Result<Back> {
    let platform = Platform::of(paths, conf);
    back_with(&Context::look(paths, &platform)?)
}

/// [`back`], wherever the ground is.
///
/// # Errors
/// As for [`back`].
pub fn back_with(context: &Context<'_>) -> Result<Back> {
    let mut guard = BootStateGuard::take(context, "rollback")?;
    guard.hold_shutdown(context, "copal");
    match context.observe()?.phase {
        Phase::Trial => Err(roll_back(context, guard, &Reason::Manual)),
        phase @ (Phase::Pending | Phase::Installing | Phase::Interrupted | Phase::Leftovers) => {
            // A boot has ended everybody.
            let in_this_boot = phase != Phase::Leftovers;
            undo(context, in_this_boot.then_some(&*context.platform.end_hooks))?;
            guard.release();
            Ok(Back::Undone)
        }
        phase => Err(refused("go back", phase)),
    }
}
