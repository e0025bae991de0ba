//! `rollback-stop`: ends a trial on the operator's request.
//!
//! The selection comes first. A power cut after it leaves breadcrumbs without a trial, which the next boot removes; the other order
//! would leave a trial that no program follows.

use std::fs;

use crate::boot_files::deploy::sum_up_selection;
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::job::lock::{Lock, Work};
use crate::slot::{Root, Roots};
use crate::state::files::{self, Flag, RollbackRecord, Trial};
use crate::state::phase::{Observation, Phase, observe};
use crate::update::undo;

/// Selects the running system for good, with a boot count of 0, and removes the traces of the trial. On return all of it is on the medium.
///
/// With `force` the present selection stays, even if it is the other system: nothing leads back from that.
pub fn run(paths: &Paths, force: bool) -> Result<()> {
    // Reading the folder triggers an automount.
    drop(fs::read_dir(paths.inactive().join(".")));
    // An update, or a verdict, writes the same files.
    let lock = Lock::take(paths, "rollback-stop", Work::BootState)?;
    let stopped = stop(paths, force);
    lock.release();
    stopped
}

fn stop(paths: &Paths, force: bool) -> Result<()> {
    let roots = Roots::of(&Facts::gather(paths)?)?;
    let mut found = observe(paths, &roots)?;
    if found.phase == Phase::Installing {
        // Hooks of a killed update still run, and would select the other system later.
        match Engine::end_hooks_of_the_dead(paths) {
            Err(e) if !force => return Err(still_running(&e, &roots)),
            Err(e) => tracing::warn!("--force: continuing although {}", e.message()),
            Ok(()) => {}
        }
        found = observe(paths, &roots)?;
    }
    if !force {
        check(&found, &roots)?;
    }
    let root = selected(&found, &roots)?;
    let sound = found.state.selected && found.state.damage.is_none();
    let settled = sound && !found.state.upgrade_available && found.state.bootcount == 0;
    if !settled {
        found.backend.set(root, false)?;
        sum_up_selection(paths);
    }
    tracing::info!("slot {} is selected for good", root.slot);
    remove_traces(paths).map_err(Error::after_write)
}

/// While the other system is selected, the bootloader may fall back to the running one.
fn check(found: &Observation, roots: &Roots) -> Result<()> {
    let running = roots.active.slot;
    let why = if found.state.selected && !found.state.root.means(&roots.active) {
        format!("slot {running} runs, but another root is selected: if that does not boot, no system will")
    } else if found.phase == Phase::RollingBack {
        format!("a rollback from slot {running} to slot {} is under way", roots.inactive_slot())
    } else if found.phase == Phase::Finishing {
        format!("a rollback to slot {running} is being completed")
    } else {
        return Ok(());
    };
    Err(Error::new(Code::StopRefused, format!("cannot stop rollbacks: {why}")).object(running))
}

fn still_running(e: &Error, roots: &Roots) -> Error {
    let inactive = roots.inactive_slot();
    let text =
        format!("cannot stop rollbacks: hooks of a killed update may still run and select slot {inactive}");
    Error::new(Code::StopRefused, text).object(inactive).because(e.clone()).with_hint(undo::HOW_TO_END)
}

/// The selected root; it stays selected.
fn selected<'r>(found: &Observation, roots: &'r Roots) -> Result<&'r Root> {
    if !found.state.selected {
        // The root that the bootloader takes by itself was never tried.
        return Ok(&roots.active);
    }
    let root = found.selected.and_then(|slot| roots.in_slot(slot));
    root.ok_or_else(|| {
        let name = &found.state.root;
        let file = found.backend.file().display();
        let text = format!("cannot stop rollbacks: {file} selects {name}, which is not a mounted root");
        Error::new(Code::BootStateInvalid, text).object(file)
    })
}

/// Removes all files of a trial, whichever fails. The breadcrumb of the health checks goes last: while it exists, the next boot removes
/// the rest. The flags of earlier rollbacks stay until the next update: the supervisor reads the last one from them.
pub(super) fn remove_traces(paths: &Paths) -> Result<()> {
    files::sweep(paths);
    let first = [
        files::remove_variables(paths),
        Flag::HealthFailed.lower(paths),
        Trial::remove(paths),
        RollbackRecord::remove(paths),
    ];
    let last = files::remove_breadcrumbs(paths);
    first.into_iter().chain([last]).collect()
}
