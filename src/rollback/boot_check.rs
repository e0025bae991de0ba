//! `copal rollback boot-check`, at every boot: makes the state agree with the phase.

use super::commit::own_boot_files;
use super::finish::{finish, undo};
use super::roll_back::{Reason, roll_back};
use super::{BootStateGuard, Context, Platform, warn};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::files::{self, BootfilesRecord, Marker, RollbackRecord, Trial};
use crate::state::phase::{Marked, Phase};

/// Each turn ends something; more would be a circle.
const MOST_TURNS: usize = 4;

/// What is left to do after a turn.
enum Next {
    /// Another look.
    Again,
    /// Nothing.
    Done,
}

/// Completes what was cut off, and prepares what the phase needs.
///
/// # Errors
/// `Busy`; `SlotUnknown` and the like; what was cut off could not be completed; the device does not reboot.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    run_with(&Context::look(paths, &platform)?)
}

/// [`run`], wherever the ground is.
///
/// # Errors
/// As for [`run`].
pub fn run_with(context: &Context<'_>) -> Result<()> {
    files::sweep(context.paths);
    files::remove_damaged(context.paths);
    for _ in 0..MOST_TURNS {
        let guard = BootStateGuard::wait_for(context, "copal-boot-check")?;
        if let Next::Done = one(context, guard)? {
            return Ok(());
        }
    }
    Ok(())
}

fn one(context: &Context<'_>, guard: BootStateGuard) -> Result<Next> {
    let paths = context.paths;
    let phase = context.observe()?.phase;
    tracing::info!("{phase}: {}", phase.meaning());
    let next = match phase {
        // The units of the programs that act in these phases look for them.
        Phase::Trial | Phase::Altboot => files::drop_breadcrumbs(paths).map(|()| Next::Done),
        Phase::Finishing => return complete(context, guard),
        Phase::RollingBack => return resume(context, guard),
        Phase::Leftovers => undo(context, None).map(|()| Next::Again),
        Phase::Healthy => {
            boot_files_cut_off(context);
            // Of an update that was cut off before its breadcrumbs, or behind them. The flags stay: they are for the owner.
            warn(files::remove_variables(paths));
            warn(Trial::remove(paths));
            // Commit hooks that are due talk to the engine, which is not there yet.
            Ok(Next::Done)
        }
        Phase::RolledBack | Phase::Installing | Phase::Pending | Phase::Interrupted => Ok(Next::Done),
    };
    guard.release();
    next
}

/// A rollback that was cut off once the running system was selected.
fn complete(context: &Context<'_>, guard: BootStateGuard) -> Result<Next> {
    let paths = context.paths;
    let Some(record) = RollbackRecord::read(paths)? else { return Ok(Next::Again) };
    // The bootloader went back by itself, or came here half way through, and the new system's boot files may have been in place still when
    // this boot began.
    let stale = !matches!(BootfilesRecord::read(paths), Ok(None));
    finish(context, &record)?;
    if !stale {
        guard.release();
        return Ok(Next::Again);
    }
    tracing::warn!("this boot began with boot files of the other slot; the device restarts with its own");
    let (target, transaction) = (record.target, record.transaction);
    let boot_id = files::boot_id(paths).unwrap_or_default();
    warn(Marker { kind: Marked::RolledBack, boot_id, target, transaction }.set(paths));
    context.flush_state();
    guard.release_to_reboot();
    Err(context.reboot())
}

/// A rollback that was cut off before the old system was selected; or the bootloader has gone on with the new one.
fn resume(context: &Context<'_>, guard: BootStateGuard) -> Result<Next> {
    let Some(record) = RollbackRecord::read(context.paths)? else { return Ok(Next::Again) };
    Err(roll_back(context, guard, &Reason::Resumed(&record)))
}

/// Boot files whose deployment did not end: with nothing under way they have to be those of the running system.
fn boot_files_cut_off(context: &Context<'_>) {
    let cut_off = match BootfilesRecord::read(context.paths) {
        Ok(record) => record.is_some(),
        Err(e) => {
            tracing::warn!("{}; boot files are looked at", e.message());
            true
        }
    };
    if cut_off {
        match own_boot_files(context) {
            Ok(()) => warn(BootfilesRecord::remove(context.paths)),
            Err(e) => tracing::error!("{}; they are tried again at the next boot", e.message()),
        }
    }
}
