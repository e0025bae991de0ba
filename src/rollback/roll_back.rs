//! The rollback from a failed new system to the old one.

use super::commit::own_boot_files;
use super::health_results::HealthResults;
use super::history_record;
use super::{BootStateGuard, Context, kernel_override, warn};
use crate::boot_files::deploy::sum_up_selection;
use crate::boot_state::{self, Backend};
use crate::error::{Code, Error, Result};
use crate::slot::Root;
use crate::state::files::{self, BootfilesRecord, Flag, Marker, RollbackKind, RollbackRecord, Trial};
use crate::state::history::{Event, Why, announce};
use crate::state::phase::{Marked, Observation};
use crate::update::undo;

pub(super) enum Reason<'a> {
    Unhealthy(&'a HealthResults),
    Manual,
    Resumed(&'a RollbackRecord),
}

impl Reason<'_> {
    fn text(&self) -> String {
        match self {
            Reason::Unhealthy(results) => {
                format!(
                    "the health checks failed {} times, in the end: {}",
                    results.attempts,
                    results.missed()
                )
            }
            Reason::Manual => "it was requested".to_owned(),
            Reason::Resumed(_) => "a rollback was cut off".to_owned(),
        }
    }
}

/// Reboots. Returns only on failure. `observed` was read under `guard`.
pub(super) fn roll_back(
    context: &Context<'_>,
    guard: BootStateGuard,
    observed: &Observation,
    reason: &Reason<'_>,
) -> Error {
    match prepare(context, observed, reason) {
        Ok(()) => {
            guard.release_to_reboot();
            context.reboot()
        }
        Err(e) => e,
    }
}

/// Everything but the reboot. An error means that no rollback is possible: the running system stays.
fn prepare(context: &Context<'_>, observed: &Observation, reason: &Reason<'_>) -> Result<()> {
    let paths = context.paths;
    let old = match context.inactive() {
        // An operator gets the error, and the trial continues. Only a root that is not mounted counts as missing.
        Err(e) if matches!(reason, Reason::Manual) || e.code() != Code::SlotUnknown => return Err(e),
        old => old,
    };
    let target = context.roots.inactive_slot();
    let mut record = context.rollback_record(target, RollbackKind::Health)?;
    if let Reason::Resumed(begun) = reason {
        record.transaction.clone_from(&begun.transaction);
    }
    tracing::error!("rolling back from slot {}: {}", context.running().slot, reason.text());
    // Without the record, a power cut from here on leads to another trial of a system that fails it.
    warn(record.write(paths));
    let pending = add_record(context, observed, reason, &record);
    let before = boot_state::detect_to_change(paths)?;
    let (old, back) = match old {
        Ok(old) => {
            kernel_override::restore(paths, &*before, target);
            let back = boot_files(context, &old, &*before);
            (Some(old), back)
        }
        Err(e) => (None, Err(e.after_write())),
    };
    let stays = match &back {
        Ok(()) => {
            announce::rolled_back(target, &reason.text());
            warn(BootfilesRecord::settle(paths, target));
            warn(Flag::HealthTriggered.raise(paths));
            false
        }
        Err(e) => {
            announce::rollback_failed(target, e);
            warn(Flag::HealthFailed.raise(paths));
            old.is_none_or(|old| half_way(context, &old))
        }
    };
    warn(files::remove_variables(paths));
    let stayed = stays.then(|| stay(context));
    sum_up_selection(paths);
    warn(files::remove_breadcrumbs(paths));
    if !stays {
        let (transaction, boot_id) = (record.transaction.clone(), record.boot_id.clone());
        warn(Marker { kind: Marked::RolledBack, boot_id, target, transaction }.set(paths));
    }
    context.flush_state();
    pending.finish();
    let Err(e) = back else { return Ok(()) };
    let mut failure =
        context.record(Event::RollbackFailed, &record.transaction, context.running().slot, target);
    history_record::failed(&mut failure, &e);
    context.add_record(failure, false).finish();
    let Some(stayed) = stayed else { return Ok(()) };
    // The record last: until everything else is in place, a power cut must lead here again.
    warn(stayed.and_then(|()| RollbackRecord::remove(paths)));
    Err(e)
}

/// Whether to stay with the running system, which has failed, but runs, since no later boot would roll back. Otherwise the record makes the
/// next boot try again, and the bootloader, which counts the attempts, falls back to the old system.
fn half_way(context: &Context<'_>, old: &Root) -> bool {
    let read = || -> Result<bool> {
        let backend = boot_state::detect(context.paths)?;
        let state = backend.read()?;
        if state.selects(old) {
            // Its hooks selected the old system on trial, and nothing would end that trial.
            backend.set(old, false)?;
            return Ok(false);
        }
        Ok(!state.upgrade_available || !backend.counts())
    };
    let uncounted = read().unwrap_or_else(|e| {
        tracing::warn!("{}", e.message());
        false
    });
    uncounted || !(context.platform.old_is_there)()
}

/// Commits the running system with its own boot files: some of the old one's may be in place. The caller removes the record.
fn stay(context: &Context<'_>) -> Result<()> {
    let (paths, slot) = (context.paths, context.running().slot);
    tracing::error!("slot {slot} stays although it has failed: no rollback is possible");
    let own = own_boot_files(context);
    let in_place = own.is_ok();
    warn(own);
    let backend = boot_state::detect(paths)?;
    undo::select(paths, &*backend, context.running())?;
    // Otherwise the next boot tries again.
    if in_place {
        warn(BootfilesRecord::settle(paths, slot));
    }
    warn(Trial::remove(paths));
    Ok(())
}

/// The old system's own hooks know all of its boot files, and its backend; without them, copal deploys the boot files it knows.
fn boot_files(context: &Context<'_>, old: &Root, before: &dyn Backend) -> Result<()> {
    let paths = context.paths;
    let ran = (context.platform.old_hooks)();
    undo::flush_boot(paths);
    let Err(e) = ran else {
        return undo::select(paths, &*boot_state::detect(paths)?, old);
    };
    tracing::error!("{}; restoring the boot files of slot {} without them", e.message(), old.slot);
    (context.platform.old_boot_files)().map_err(|own| own.and_also(&e.message()))?;
    undo::select(paths, before, old)
}

/// The first record of a rollback has all details; a resumed rollback adds none.
fn add_record(
    context: &Context<'_>,
    observed: &Observation,
    reason: &Reason<'_>,
    rollback: &RollbackRecord,
) -> history_record::PendingRecord {
    let running = context.running().slot;
    let mut record =
        context.record(Event::RolledBack, &rollback.transaction, running, context.roots.inactive_slot());
    history_record::observed(&mut record, observed);
    match reason {
        Reason::Unhealthy(results) => history_record::checked(&mut record, results),
        Reason::Manual => record.why = Some(Why::Requested),
        Reason::Resumed(_) if context.is_recorded(Event::RolledBack, &rollback.transaction) => {
            return history_record::PendingRecord::nothing();
        }
        Reason::Resumed(_) => {}
    }
    context.add_record(record, true)
}
