//! The new system has failed: back to the old one.

use super::commit::own_boot_files;
use super::story;
use super::trial::Tried;
use super::{Ground, Turn, kernel_override, warn};
use crate::boot_state::{self, Dialect};
use crate::error::{Code, Error, Result};
use crate::hooks::builtin::bootfiles;
use crate::slot::Root;
use crate::state::files::{self, BootfilesRecord, Flag, Marker, RollbackKind, RollbackRecord, Trial};
use crate::state::history::{Event, Why, announce};
use crate::state::phase::Marked;
use crate::update::undo;

/// Why the device goes back.
pub(super) enum Reason<'a> {
    /// The health checks failed to the last.
    Unhealthy(&'a Tried),
    /// Somebody said so.
    ByHand,
    /// A rollback was cut off.
    Resumed(&'a RollbackRecord),
}

impl Reason<'_> {
    fn text(&self) -> String {
        match self {
            Reason::Unhealthy(tried) => {
                format!("health checks failed {} times, at last: {}", tried.attempts, tried.missed())
            }
            Reason::ByHand => "it was asked for".to_owned(),
            Reason::Resumed(_) => "a rollback was cut off".to_owned(),
        }
    }
}

/// Goes back and reboots. A return is a failure.
pub(super) fn go_back(ground: &Ground<'_>, turn: Turn, reason: &Reason<'_>) -> Error {
    match prepare(ground, reason) {
        Ok(()) => {
            turn.release_to_reboot();
            ground.reboot()
        }
        Err(e) => e,
    }
}

/// Everything but the reboot. An error means that there is nothing to go back to: the running system stays.
fn prepare(ground: &Ground<'_>, reason: &Reason<'_>) -> Result<()> {
    let paths = ground.paths;
    let old = match ground.other() {
        // Whoever asks for it by hand is told, and the trial goes on; and only a root that is not mounted is one that is not there.
        Err(e) if matches!(reason, Reason::ByHand) || e.code() != Code::SlotUnknown => return Err(e),
        old => old,
    };
    let target = ground.running().slot.other();
    let mut record = ground.rollback_record(target, RollbackKind::Health)?;
    if let Reason::Resumed(begun) = reason {
        record.transaction.clone_from(&begun.transaction);
    }
    tracing::error!("slot {} is given up: {}", ground.running().slot, reason.text());
    // Without it a cut from here on leads to another trial of a system that fails it.
    warn(record.write(paths));
    let telling = tell(ground, reason, &record);
    let before = boot_state::detect(paths)?;
    let (old, back) = match old {
        Ok(old) => {
            kernel_override::restore(paths, &*before, target);
            let back = boot_files(ground, &old, &*before);
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
            old.is_none_or(|old| half_way(ground, &old))
        }
    };
    warn(files::remove_variables(paths));
    let stayed = stays.then(|| stay(ground));
    bootfiles::sum_up_selection(paths);
    warn(files::remove_breadcrumbs(paths));
    if !stays {
        let (transaction, boot_id) = (record.transaction.clone(), record.boot_id.clone());
        warn(Marker { kind: Marked::RolledBack, boot_id, target, transaction }.set(paths));
    }
    ground.flush_state();
    telling.finish();
    let Err(e) = back else { return Ok(()) };
    let mut story = ground.record(Event::RollbackFailed, &record.transaction, ground.running().slot, target);
    story::failed(&mut story, &e);
    ground.tell(story, false).finish();
    let Some(stayed) = stayed else { return Ok(()) };
    // The record last: until everything else is in place, a cut leads here once more, and not to a system that has nothing to say of it.
    warn(stayed.and_then(|()| RollbackRecord::remove(paths)));
    Err(e)
}

/// Whether the device has to stay with the running system, which has failed, but runs: nothing would lead back from a reboot.
///
/// Otherwise the record makes the next boot try again, and the bootloader, which counts those, comes to the old system by itself.
fn half_way(ground: &Ground<'_>, old: &Root) -> bool {
    let read = || -> Result<bool> {
        let dialect = boot_state::detect(ground.paths)?;
        let state = dialect.read()?;
        if state.root.means(old) {
            // Its hooks came as far as their own selection, which is on trial: nobody would end that.
            dialect.set(old, false)?;
            return Ok(false);
        }
        Ok(!state.upgrade_available || !dialect.counts())
    };
    let uncounted = read().unwrap_or_else(|e| {
        tracing::warn!("{}", e.message());
        false
    });
    uncounted || !(ground.outside.old_is_there)()
}

/// The running system for good, with its own boot files: those of the old one may be in place in part. The record of the rollback
/// is left to the caller.
fn stay(ground: &Ground<'_>) -> Result<()> {
    let (paths, slot) = (ground.paths, ground.running().slot);
    tracing::error!("slot {slot} stays, although it has failed: there is nothing to go back to");
    let own = own_boot_files(ground);
    let in_place = own.is_ok();
    warn(own);
    let dialect = boot_state::detect(paths)?;
    undo::select(paths, &*dialect, ground.running())?;
    // Otherwise the next boot tries again.
    if in_place {
        warn(BootfilesRecord::settle(paths, slot));
    }
    warn(Trial::remove(paths));
    Ok(())
}

/// Boot files and selection. The old system's own hooks know everything about it, also how its bootloader is told; without them,
/// copal knows its boot files.
fn boot_files(ground: &Ground<'_>, old: &Root, before: &dyn Dialect) -> Result<()> {
    let paths = ground.paths;
    let ran = (ground.outside.old_hooks)();
    undo::flush_boot(paths);
    let Err(e) = ran else {
        return undo::select(paths, &*boot_state::detect(paths)?, old);
    };
    tracing::error!("{}; the boot files of slot {} are restored without them", e.message(), old.slot);
    (ground.outside.old_boot_files)().map_err(|own| own.and_also(&e.message()))?;
    undo::select(paths, before, old)
}

/// The first record of a rollback has the whole story; to go on with it adds nothing.
fn tell(ground: &Ground<'_>, reason: &Reason<'_>, rollback: &RollbackRecord) -> story::Telling {
    let running = ground.running().slot;
    let mut record = ground.record(Event::RolledBack, &rollback.transaction, running, running.other());
    if let Ok(seen) = ground.observe() {
        story::seen(&mut record, &seen);
    }
    match reason {
        Reason::Unhealthy(tried) => story::tried(&mut record, tried),
        Reason::ByHand => record.why = Some(Why::Asked),
        Reason::Resumed(_) if ground.is_told(Event::RolledBack, &rollback.transaction) => {
            return story::Telling::nothing();
        }
        Reason::Resumed(_) => {}
    }
    ground.tell(record, true)
}
