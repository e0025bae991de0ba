//! `0-signed-update` and the two commit hooks of `95-secureboot`.

use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::Result;
use crate::hooks::Context;
use crate::slot::Roots;
use crate::state::files::{CommitDue, Marker, RollbackRecord};
use crate::state::phase::{self, Marked, Phase};
use crate::unlock::{self, Direction};

/// In an update and in a rollback the release is not the running one. An undo puts the running one's programs in place.
pub(super) fn signed_update(context: &Context) -> Result<()> {
    let roots = Roots::of(&Facts::gather(&context.paths)?)?;
    let direction = if context.during_update && !is_rollback(&context.paths, &roots)? {
        Direction::Forward
    } else {
        Direction::Back
    };
    unlock::put_in_place(&context.paths, &roots.active, direction)
}

/// By copal, or by a shell release, which leaves no record: it rolls back during the trial only.
fn is_rollback(paths: &Paths, roots: &Roots) -> Result<bool> {
    if RollbackRecord::is_at_work(paths, roots.inactive()?.slot) {
        return Ok(true);
    }
    // An update by copal, in whatever phase it was forced.
    if matches!(Marker::read(paths), Ok(Some(Marker { kind: Marked::Installing, .. }))) {
        return Ok(false);
    }
    Ok(phase::observe(paths, roots).is_ok_and(|seen| {
        matches!(seen.phase, Phase::Trial | Phase::RollingBack | Phase::Finishing | Phase::RolledBack)
    }))
}

/// A release that has proved itself stays committed: what fails here is tried again at the next start.
fn try_to(paths: &Paths, what: &str, done: Result<()>) {
    let Err(e) = done else { return };
    let again = CommitDue::read(paths).and_then(|due| match due {
        Some(due) => CommitDue { again: true, ..due }.write(paths),
        // They were not run by a commit.
        None => Ok(()),
    });
    tracing::error!("cannot {what}: {e}");
    if let Err(e) = again {
        tracing::warn!("{e}");
    }
}

pub(super) fn apply_dbx(context: &Context) -> Result<()> {
    let active = Roots::of(&Facts::gather(&context.paths)?)?.active;
    try_to(
        &context.paths,
        "forbid the programs of the release before",
        unlock::apply_pending(&context.paths, &active),
    );
    Ok(())
}

pub(super) fn update_policy(context: &Context) -> Result<()> {
    let active = Roots::of(&Facts::gather(&context.paths)?)?.active;
    try_to(&context.paths, "put the policies of the TPM in order", unlock::settle(&context.paths, &active));
    Ok(())
}
