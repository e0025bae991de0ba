//! `80-rollback`: what tells the next boots, and the supervisor, that an update is under way or no longer is.

use std::path::Path;

use super::support::failed;
use crate::boot_state::detect;
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::slot::Roots;
use crate::state::files::{
    Flag, Marker, RollbackRecord, Trial, drop_breadcrumbs, remove_breadcrumbs, remove_variables,
};
use crate::sys::file::{self, Folder, Steps as _};

/// During an update: breadcrumbs, and no flags of an earlier one. Otherwise: nothing of either.
///
/// # Errors
/// `HookFailed` when a boot partition is not mounted, `StateUnwritable`.
pub(super) fn run(context: &Context) -> Result<()> {
    let paths = &context.paths;
    for point in [paths.boot(), paths.plain_boot()] {
        if !point.is_dir() {
            let why = format!("{} does not exist", point.display());
            return Err(failed("prepare for a rollback", why, &point)
                .with_hint("find out why the boot partition is not mounted"));
        }
    }
    sweep(&paths.state());
    if context.during_update {
        remove_stale_records(paths)?;
        drop_breadcrumbs(paths)?;
        lower_flags(paths)?;
    } else {
        lower_flags(paths)?;
        remove_variables(paths)?;
        if is_settled(paths) || !copal_follows(paths) {
            remove_breadcrumbs(paths)?;
        }
    }
    flush(&paths.state())
}

/// What an earlier update's verdict has left for a system that knows nothing of it, a shell release. It would be taken for this
/// update's: the new system would go back without tests, or stay without them.
fn remove_stale_records(paths: &Paths) -> Result<()> {
    let other = Facts::gather(paths).and_then(|facts| Ok(Roots::of(&facts)?.other()?.slot));
    match other {
        Ok(other) if RollbackRecord::is_at_work(paths, other) => return Ok(()),
        Ok(_) => {}
        Err(e) => {
            // Whoever selects a root says why it cannot be told.
            tracing::debug!("records of rollbacks stay: {e}");
            return Ok(());
        }
    }
    RollbackRecord::remove(paths)?;
    // One of this update is there already where copal installs.
    if copal_follows(paths) { Ok(()) } else { Trial::remove(paths) }
}

fn lower_flags(paths: &Paths) -> Result<()> {
    Flag::ALL.into_iter().try_for_each(|flag| flag.lower(paths))
}

/// Whether the bootloader boots the running root. While it does not, the breadcrumbs are what makes the next boot go on.
fn is_settled(paths: &Paths) -> bool {
    let running = || -> Result<bool> {
        let roots = Roots::of(&Facts::gather(paths)?)?;
        Ok(detect(paths)?.read()?.root.means(&roots.active))
    };
    running().unwrap_or_else(|e| {
        tracing::debug!("cannot tell whether the running root is selected: {e}");
        false
    })
}

/// Whether copal called, which removes the breadcrumbs itself once the selection is the old one. After a shell release's hooks
/// nobody does, and breadcrumbs that stay would keep the supervisor from rebooting for good.
fn copal_follows(paths: &Paths) -> bool {
    Marker::read(paths)
        .unwrap_or_else(|e| {
            tracing::warn!("{e}; taken for that of another boot");
            None
        })
        .is_some()
}

/// What a cut left of an earlier change.
fn sweep(state: &Path) {
    if let Err(e) = Folder::open(state).and_then(|folder| file::sweep(&folder)) {
        tracing::warn!("cannot clean up {}: {e}", state.display());
    }
}

/// Also what a shell release put there without waiting for it.
fn flush(state: &Path) -> Result<()> {
    let flushed = Folder::open(state).and_then(|folder| {
        folder.sync_folder()?;
        folder.flush()
    });
    flushed.map_err(|e| {
        Error::new(Code::StateUnwritable, format!("cannot flush {}", state.display()))
            .object(state.display())
            .because(e)
    })
}
