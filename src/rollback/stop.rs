//! `rollback-stop`: ends a trial by hand.
//!
//! The trial itself goes first. A cut behind that leaves breadcrumbs of a trial that is over, which the next boot cleans up; the
//! other way round it would leave a trial that nobody follows.

use std::fs;

use crate::boot_state::Named;
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::hooks::builtin::bootfiles;
use crate::slot::{Root, Roots};
use crate::state::files::{self, Flag, RollbackRecord, Trial};
use crate::state::phase::{Observation, Phase, observe};
use crate::update::lock::{Lock, Work};
use crate::update::undo;

/// Selects the running system for good, with a count of 0, and removes what makes the next boot follow a trial. Everything is on
/// the medium when this returns.
///
/// With `force`, what is selected stays selected, even if it is the other system: nothing then leads back from that.
///
/// # Errors
/// `Busy` while an update, or a verdict, is being carried out. `StopRefused` while the bootloader selects the other system, a rollback to it is
/// under way, or hooks of an update that was killed may still run; nothing was written then.
/// `BootStateInvalid`, `BootStateUnwritable`, `SlotUnknown`, `SlotSame`, `Io`; `StateUnwritable` once the trial is over and a trace of
/// it stays.
pub fn run(paths: &Paths, force: bool) -> Result<()> {
    // Looked into, an automount mounts what it stands for.
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
        // Whoever was killed has left its hooks running: they would select the other system afterwards.
        match Engine::end_hooks_of_the_dead(paths) {
            Err(e) if !force => return Err(still_running(&e, &roots)),
            Err(e) => tracing::warn!("--force: going on although {}", e.message()),
            Ok(()) => {}
        }
        found = observe(paths, &roots)?;
    }
    if !force {
        check(&found, &roots)?;
    }
    let root = selected(&found, &roots)?;
    let settled = !found.state.upgrade_available && found.state.bootcount == 0;
    if !settled {
        found.backend.set(root, false)?;
        bootfiles::sum_up_selection(paths);
    }
    tracing::info!("slot {} is selected for good", root.slot);
    remove_traces(paths).map_err(Error::after_write)
}

/// With the other system selected, the running one is what the bootloader falls back to.
fn check(found: &Observation, roots: &Roots) -> Result<()> {
    let running = roots.active.slot;
    let why = if !found.state.root.means(&roots.active) {
        format!(
            "slot {running} runs, and the bootloader selects another root: if that does not boot, nothing will"
        )
    } else if found.phase == Phase::RollingBack {
        format!("a rollback from slot {running} to slot {} is under way", running.other())
    } else if found.phase == Phase::Finishing {
        format!("a rollback to slot {running} is being completed")
    } else {
        return Ok(());
    };
    Err(Error::new(Code::StopRefused, format!("cannot stop rollbacks: {why}")).object(running))
}

fn still_running(e: &Error, roots: &Roots) -> Error {
    let other = roots.active.slot.other();
    let text = format!(
        "cannot stop rollbacks: hooks of an update that has died may still run, and select slot {other}"
    );
    Error::new(Code::StopRefused, text).object(other).because(e.message()).with_hint(undo::HOW_TO_END)
}

/// The root that is selected, which stays so.
fn selected<'r>(found: &Observation, roots: &'r Roots) -> Result<&'r Root> {
    let root = found.selected.and_then(|slot| roots.in_slot(slot));
    root.ok_or_else(|| {
        let name = match &found.state.root {
            Named::Index(index) => format!("partition {index}"),
            Named::Slot(slot) => format!("root {slot}"),
            Named::Other(text) => format!("{text:?}"),
        };
        let file = found.backend.file().display();
        let text = format!("cannot stop rollbacks: {file} selects {name}, which is no root that is mounted");
        Error::new(Code::BootStateInvalid, text).object(file)
    })
}

/// Removes what an update has left behind for a trial; all of it is tried. The breadcrumb of the health checks goes last: while it
/// is there, the next boot looks after the rest. The flags of rollbacks that took place stay until the next update: they say what became
/// of the last one.
///
/// # Errors
/// `StateUnwritable`, the first one.
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
