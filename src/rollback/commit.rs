//! Commits the new system.

use super::health_results::HealthResults;
use super::history_record;
use super::{BootStateGuard, Context, kernel_override, stop, warn};
use crate::boot_files::deploy::{DeployRequest, Purpose, sum_up_selection};
use crate::boot_state;
use crate::error::Result;
use crate::hooks::builtin::bootfiles;
use crate::hooks::{self, HOOKS_FOLDER};
use crate::state::files::{BootfilesRecord, CommitDue};
use crate::state::history::{Event, Why, announce};
use crate::state::phase::Observation;
use crate::sys::signal;

pub(super) enum Proof<'a> {
    Healthy(&'a HealthResults),
    /// The previous system is too old for a rollback.
    PreviousTooOld,
    Manual,
}

/// From the moment that the selection is for good, no rollback follows.
/// `observed` was read under `guard`.
pub(super) fn commit(
    context: &Context<'_>,
    mut guard: BootStateGuard,
    observed: &Observation,
    proof: &Proof<'_>,
) -> Result<()> {
    let paths = context.paths;
    let running = context.running();
    let transaction = context.transaction()?;
    // A failure here did not keep the system from starting; its record makes the next boot try again.
    let own = own_boot_files(context);
    let in_place = own.is_ok();
    warn(own);
    let backend = boot_state::detect_to_change(paths)?;
    kernel_override::commit(paths, &*backend, running.slot);
    // Without a writable state partition, a power cut costs the commit hooks, not the verdict.
    warn(CommitDue { transaction: transaction.clone(), slot: running.slot, again: false }.write(paths));
    backend.set(running, false)?;
    announce::committed(running.slot, context.version_of(running.slot).as_deref());
    let mut record =
        context.record(Event::Committed, &transaction, context.roots.inactive_slot(), running.slot);
    history_record::observed(&mut record, observed);
    match proof {
        Proof::Healthy(results) => history_record::checked(&mut record, results),
        Proof::PreviousTooOld => record.why = Some(Why::TooOld),
        Proof::Manual => record.why = Some(Why::Requested),
    }
    let pending = context.add_record(record, false);
    if in_place {
        warn(BootfilesRecord::settle(paths, running.slot));
    }
    sum_up_selection(paths);
    warn(stop::remove_traces(paths));
    context.flush_state();
    pending.finish();
    // A commit hook may reboot.
    guard.allow_shutdown();
    run_due_hooks(context);
    guard.release();
    Ok(())
}

/// Runs the commit hooks that are due. One that fails counts as run, unless it has left a request; one that reboots runs again.
pub(super) fn run_due_hooks(context: &Context<'_>) {
    let due = match CommitDue::read(context.paths) {
        Ok(None) => return,
        Ok(Some(due)) => {
            // Only a hook of this run may ask for another one.
            if due.again {
                warn(CommitDue { again: false, ..due.clone() }.write(context.paths));
            }
            due.slot == context.running().slot
        }
        Err(e) => {
            tracing::warn!("{}; running the commit hooks again", e.message());
            true
        }
    };
    if due && let Err(e) = (context.platform.commit_hooks)() {
        if signal::came().is_some() {
            tracing::warn!("{}; the next boot runs the commit hooks again", e.message());
            return;
        }
        tracing::error!("{}; the system remains committed", e.message());
    }
    if due && matches!(CommitDue::read(context.paths), Ok(Some(CommitDue { again: true, .. }))) {
        tracing::warn!("the next start runs the commit hooks again");
        return;
    }
    warn(CommitDue::remove(context.paths));
}

/// Deploys the running release's boot files that differ: by its own hooks where it has them, since they know what the board leaves out.
pub(super) fn own_boot_files(context: &Context<'_>) -> Result<()> {
    let paths = context.paths;
    let installed =
        bootfiles::NAMES.iter().map(|name| paths.at(HOOKS_FOLDER).join(name)).filter(|p| p.is_file());
    let installed: Vec<_> = installed.collect();
    if installed.is_empty() {
        let done = DeployRequest::new(paths, context.running(), Purpose::Undo)?.deploy()?;
        tracing::info!("boot files of slot {}: {done}", context.running().slot);
        return Ok(());
    }
    installed.iter().try_for_each(|hook| hooks::run_program(hook, &[], "0".as_ref()))
}
