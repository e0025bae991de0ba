//! `0-signed-update` and the two commit hooks of `95-secureboot`.

use super::support::goes_back;
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::Result;
use crate::hooks::Context;
use crate::slot::Roots;
use crate::state::files::Marker;
use crate::state::phase::Marked;
use crate::unlock::{self, Direction};

/// In an update and in a rollback the release is not the running one. An undo puts the running one's programs in place.
pub(super) fn signed_update(context: &Context) -> Result<()> {
    let paths = &context.paths;
    let roots = Roots::of(&Facts::gather(paths)?)?;
    let direction = match context.during_update {
        true if is_installed_by_copal(paths) || !goes_back(paths, &roots, roots.inactive()?.slot) => {
            Direction::Forward
        }
        _ => Direction::Back,
    };
    unlock::put_in_place(paths, &roots.active, direction)
}

/// In whatever phase, as its caller may have forced it.
fn is_installed_by_copal(paths: &Paths) -> bool {
    matches!(Marker::read(paths), Ok(Some(Marker { kind: Marked::Installing, .. })))
}

/// A release that has proved itself stays committed: what fails here is tried again at the next commit.
fn try_to(what: &str, done: Result<()>) {
    if let Err(e) = done {
        tracing::error!("cannot {what}; the next commit tries again: {e}");
    }
}

pub(super) fn apply_dbx(context: &Context) -> Result<()> {
    let active = Roots::of(&Facts::gather(&context.paths)?)?.active;
    try_to("forbid the programs of the release before", unlock::apply_pending(&context.paths, &active));
    Ok(())
}

pub(super) fn update_policy(context: &Context) -> Result<()> {
    let active = Roots::of(&Facts::gather(&context.paths)?)?.active;
    try_to("put the policies of the TPM in order", unlock::settle(&context.paths, &active));
    Ok(())
}
