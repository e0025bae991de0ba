//! The new system has failed: back to the old one.

use super::story;
use super::trial::Tried;
use super::{Ground, Turn, kernel_override, warn};
use crate::bootloader;
use crate::error::{Error, Result};
use crate::history::{Event, announce};
use crate::hostapp::undo;
use crate::phase::Marked;
use crate::phase::files::{self, BootfilesRecord, Flag, Marker, RollbackKind, RollbackRecord};
use crate::slot::Root;

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

/// Everything but the reboot.
fn prepare(ground: &Ground<'_>, reason: &Reason<'_>) -> Result<()> {
    let paths = ground.paths;
    let old = ground.roots.other()?;
    let record = match reason {
        Reason::Resumed(record) => (*record).clone(),
        _ => RollbackRecord {
            target: old.slot,
            kind: RollbackKind::Health,
            transaction: ground.transaction()?,
        },
    };
    tracing::error!("slot {} is given up: {}", ground.running().slot, reason.text());
    let telling = tell(ground, reason, &record);
    if !matches!(reason, Reason::Resumed(_)) {
        record.write(paths)?;
    }
    let before = bootloader::detect(paths)?;
    kernel_override::restore(paths, &*before, old.slot);
    let back = boot_files(ground, old).and_then(|()| undo::select(paths, &*before, old));
    match &back {
        Ok(()) => {
            announce::rolled_back(old.slot, &reason.text());
            warn(BootfilesRecord::settle(paths, old.slot));
            warn(Flag::HealthTriggered.raise(paths));
        }
        Err(e) => {
            // The record stays, so that the next boot tries again; the bootloader counts those, and comes to the old system
            // by itself.
            announce::rollback_failed(old.slot, e);
            warn(Flag::HealthFailed.raise(paths));
        }
    }
    warn(files::remove_variables(paths));
    warn(files::remove_breadcrumbs(paths));
    let marker = Marker {
        kind: Marked::RolledBack,
        boot_id: files::boot_id(paths)?,
        target: old.slot,
        transaction: record.transaction.clone(),
    };
    warn(marker.set(paths));
    ground.flush_state();
    telling.finish();
    if let Err(e) = back {
        let mut story =
            ground.record(Event::RollbackFailed, &record.transaction, ground.running().slot, old.slot);
        story::failed(&mut story, &e);
        ground.tell(story, false).finish();
    }
    Ok(())
}

/// The old system's own hooks know everything about it; without them, copal knows its boot files.
fn boot_files(ground: &Ground<'_>, old: &Root) -> Result<()> {
    let Err(e) = (ground.outside.old_hooks)() else { return Ok(()) };
    tracing::error!("{}; the boot files of slot {} are restored without them", e.message(), old.slot);
    (ground.outside.old_boot_files)().map_err(|own| own.and_also(&e.message()))
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
        Reason::ByHand => {}
        Reason::Resumed(_) if ground.is_told(Event::RolledBack, &rollback.transaction) => {
            return story::Telling::nothing();
        }
        Reason::Resumed(_) => {}
    }
    ground.tell(record, true)
}
