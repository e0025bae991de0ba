//! `copal rollback boot-check`, at every boot: repairs what the phase shows as interrupted.

use super::commit::own_boot_files;
use super::finish::{finish, undo};
use super::repair::{clear_stale_count, repair_at_boot};
use super::roll_back::{Reason, roll_back};
use super::{BootStateGuard, Context, Platform, warn};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::Result;
use crate::state::files::{self, BootfilesRecord, Marker, RollbackRecord, Trial};
use crate::state::phase::{Marked, Observation, Phase};
use crate::unlock;

/// Each turn completes something. More turns would be an endless loop.
const MAX_TURNS: usize = 4;

enum Next {
    Again,
    Done,
}

/// Completes what was interrupted, and prepares what the phase needs.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    run_with(&Context::look(paths, &platform)?)
}

pub fn run_with(context: &Context<'_>) -> Result<()> {
    // First: at rest, it would help an attacker.
    warn(unlock::settle_spare(context.paths, context.running()));
    files::sweep(context.paths);
    files::remove_damaged(context.paths);
    for _ in 0..MAX_TURNS {
        let guard = BootStateGuard::wait_for(context, "copal-boot-check")?;
        if let Next::Done = one(context, guard)? {
            return Ok(());
        }
    }
    Ok(())
}

fn one(context: &Context<'_>, guard: BootStateGuard) -> Result<Next> {
    let paths = context.paths;
    let observed = context.observe()?;
    let phase = observed.phase;
    tracing::info!("{phase}: {}", phase.meaning());
    // First: until then the bootloader may start another root.
    let repaired = repair_at_boot(paths, &context.roots, &observed);
    let next = match phase {
        // Conditions of the units that act in these phases.
        Phase::Trial | Phase::Altboot => files::drop_breadcrumbs(paths).map(|()| Next::Done),
        Phase::Finishing => return complete(context, guard),
        Phase::RollingBack => return resume(context, guard, &observed),
        Phase::Cleanup => undo(context, None).map(|()| Next::Again),
        Phase::Healthy => {
            warn(clear_stale_count(&context.roots, &observed));
            boot_files_cut_off(context);
            // Traces of an interrupted update. The flags stay: they are for the owner.
            warn(files::remove_variables(paths));
            warn(Trial::remove(paths));
            // Commit hooks need the engine, which does not run yet.
            Ok(Next::Done)
        }
        Phase::RolledBack | Phase::Installing | Phase::Pending | Phase::Interrupted => Ok(Next::Done),
    };
    guard.release();
    repaired.and(next)
}

/// The rollback was interrupted after the running system was selected.
fn complete(context: &Context<'_>, guard: BootStateGuard) -> Result<Next> {
    let paths = context.paths;
    let Some(record) = RollbackRecord::read(paths)? else { return Ok(Next::Again) };
    // The bootloader fell back, or booted half-way through the rollback: this boot may have begun with the new system's boot files.
    let stale = !matches!(BootfilesRecord::read(paths), Ok(None));
    finish(context, &record)?;
    if !stale {
        guard.release();
        return Ok(Next::Again);
    }
    tracing::warn!("this boot began with boot files of the other slot; rebooting with its own");
    let (target, transaction) = (record.target, record.transaction);
    let boot_id = files::boot_id(paths).unwrap_or_default();
    warn(Marker { kind: Marked::RolledBack, boot_id, target, transaction }.set(paths));
    context.flush_state();
    guard.release_to_reboot();
    Err(context.reboot())
}

/// The rollback was interrupted before the old system was selected, or the bootloader has booted the new one again.
fn resume(context: &Context<'_>, guard: BootStateGuard, observed: &Observation) -> Result<Next> {
    let Some(record) = RollbackRecord::read(context.paths)? else { return Ok(Next::Again) };
    Err(roll_back(context, guard, observed, &Reason::Resumed(&record)))
}

/// Repairs an interrupted deployment: at rest, the boot partition must have the boot files of the running system.
fn boot_files_cut_off(context: &Context<'_>) {
    let cut_off = match BootfilesRecord::read(context.paths) {
        Ok(record) => record.is_some(),
        Err(e) => {
            tracing::warn!("{}; checking the boot files", e.message());
            true
        }
    };
    if cut_off {
        match own_boot_files(context) {
            Ok(()) => warn(BootfilesRecord::remove(context.paths)),
            Err(e) => tracing::error!("{}; the next boot tries again", e.message()),
        }
    }
}
