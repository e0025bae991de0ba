//! The end of a rollback, in the system that it leads to.

use super::{Context, warn};
use crate::error::{Error, Result};
use crate::state::files::{Flag, RollbackKind, RollbackRecord};
use crate::update::undo::{self, EndHooks, Undo, Undone};

impl RollbackKind {
    fn flag(self) -> Flag {
        match self {
            RollbackKind::Health => Flag::HealthTriggered,
            RollbackKind::Altboot => Flag::AltbootTriggered,
        }
    }
}

/// Selection, boot files, flag, traces; the record last. A repeated call completes an interrupted one.
pub(super) fn finish(context: &Context<'_>, record: &RollbackRecord) -> Result<()> {
    let backend = crate::boot_state::detect(context.paths)?;
    let undo = Undo {
        paths: context.paths,
        roots: &context.roots,
        backend: &*backend,
        transaction: record.transaction.clone(),
        hooks: Some(&context.platform.current_hooks),
        end_hooks: None,
    };
    let mut undone = undo.restore();
    if undone.selection.is_ok() {
        // After the hooks, which lower the flags of earlier updates.
        warn(record.kind.flag().raise(context.paths));
        undo.clear(&mut undone);
    }
    log_failures(undone)?;
    context.flush_state();
    RollbackRecord::remove(context.paths)
}

/// Undoes a failed update: no rollback, and no flag. `end_hooks` where the update may have been killed in this boot: its hooks still run.
pub(super) fn undo(context: &Context<'_>, end_hooks: Option<EndHooks<'_>>) -> Result<()> {
    let backend = crate::boot_state::detect(context.paths)?;
    let undo = Undo {
        paths: context.paths,
        roots: &context.roots,
        backend: &*backend,
        transaction: context.transaction()?,
        hooks: Some(&context.platform.current_hooks),
        end_hooks,
    };
    let mut undone = undo.run();
    let left = undone.left.take();
    log_failures(undone)?;
    let Some(e) = left else { return Ok(()) };
    let (running, inactive) = (context.running().slot, context.roots.inactive_slot());
    let message = format!(
        "slot {running} is selected again, but hooks of the update may still run and select slot {inactive}"
    );
    Err(Error::new(e.code(), message).object(inactive).because(e).with_hint(undo::HOW_TO_END).after_write())
}

/// Logs every failure. Only a failed selection is an error.
fn log_failures(undone: Undone) -> Result<()> {
    if let Some(Err(e)) = &undone.boot_files {
        tracing::error!("{}; the next boot tries again", e.message());
    }
    for e in &undone.others {
        tracing::warn!("{}", e.message());
    }
    undone.selection
}
