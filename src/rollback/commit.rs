//! The new system stays.

use super::story;
use super::trial::Tried;
use super::{Ground, Turn, kernel_override, stop, warn};
use crate::boot_state;
use crate::error::Result;
use crate::hooks::builtin::bootfiles::{self, Purpose, Request};
use crate::hooks::{self, DIR};
use crate::state::files::{BootfilesRecord, CommitDue};
use crate::state::history::{Event, Why, announce};
use crate::sys::signal;

/// Why it stays.
pub(super) enum Proof<'a> {
    /// The health checks passed.
    Healthy(&'a Tried),
    /// There is no going back to the system before it.
    NoWayBack,
    /// Somebody said so.
    ByHand,
}

/// Commits the running system. From the moment in which its selection is for good it never goes back later.
///
/// # Errors
/// `BootStateUnwritable`, `StateUnwritable`: the system is still on trial.
pub(super) fn commit(ground: &Ground<'_>, mut turn: Turn, proof: &Proof<'_>) -> Result<()> {
    let paths = ground.paths;
    let running = ground.running();
    let transaction = ground.transaction()?;
    let seen = ground.observe()?;
    // What failed here did not keep the system from starting; the record of it makes the next boot try again.
    let own = own_boot_files(ground);
    let in_place = own.is_ok();
    warn(own);
    let dialect = boot_state::detect(paths)?;
    kernel_override::commit(paths, &*dialect, running.slot);
    // A state partition that takes nothing costs the commit hooks of a cut, not the verdict.
    warn(CommitDue { transaction: transaction.clone(), slot: running.slot }.write(paths));
    dialect.set(running, false)?;
    announce::committed(running.slot, ground.version_of(running.slot).as_deref());
    let mut record = ground.record(Event::Committed, &transaction, running.slot.other(), running.slot);
    story::seen(&mut record, &seen);
    match proof {
        Proof::Healthy(tried) => story::tried(&mut record, tried),
        Proof::NoWayBack => record.why = Some(Why::TooOld),
        Proof::ByHand => record.why = Some(Why::Asked),
    }
    let telling = ground.tell(record, false);
    if in_place {
        warn(BootfilesRecord::settle(paths, running.slot));
    }
    bootfiles::sum_up_selection(paths);
    warn(stop::remove_traces(paths));
    ground.flush_state();
    telling.finish();
    // A commit hook may reboot.
    turn.allow_shutdown();
    due_hooks(ground);
    turn.release();
    Ok(())
}

/// The commit hooks, if they have not all run. One that fails has been run; one that reboots is run again.
pub(super) fn due_hooks(ground: &Ground<'_>) {
    let due = match CommitDue::read(ground.paths) {
        Ok(None) => return,
        Ok(Some(due)) => due.slot == ground.running().slot,
        Err(e) => {
            tracing::warn!("{}; the commit hooks are run once more", e.message());
            true
        }
    };
    if due && let Err(e) = (ground.outside.commit_hooks)() {
        if signal::came().is_some() {
            tracing::warn!("{}; the commit hooks are run again at the next boot", e.message());
            return;
        }
        tracing::error!("{}; the system stays all the same", e.message());
    }
    warn(CommitDue::remove(ground.paths));
}

/// Compares the boot partition with the boot files of the running release, and deploys what differs: by the release's own hooks
/// where it has them, since they know what the board leaves out.
///
/// # Errors
/// Those of the deployment, or `HookFailed`.
pub(super) fn own_boot_files(ground: &Ground<'_>) -> Result<()> {
    let paths = ground.paths;
    let installed = bootfiles::NAMES.iter().map(|name| paths.at(DIR).join(name)).filter(|p| p.is_file());
    let installed: Vec<_> = installed.collect();
    if installed.is_empty() {
        let request = Request::new(paths, ground.running(), Purpose::Undo)?;
        let done = bootfiles::deploy(&request)?;
        tracing::info!("boot files of slot {}: {done}", ground.running().slot);
        return Ok(());
    }
    installed.iter().try_for_each(|hook| hooks::run_program(hook, &[], "0".as_ref()))
}
