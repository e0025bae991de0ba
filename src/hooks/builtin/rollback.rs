//! `80-rollback`: the files that report an update to the next boots and the supervisor.

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
use crate::sys::file::{self, Folder};

/// During an update: breadcrumbs, and no flags of an earlier one. Otherwise neither.
pub(super) fn run(context: &Context) -> Result<()> {
    let paths = &context.paths;
    for point in [paths.boot(), paths.plain_boot()] {
        if !point.is_dir() {
            let why = format!("{} does not exist", point.display());
            return Err(failed("prepare for a rollback", why, &point)
                .with_hint("check why the boot partition is not mounted"));
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

/// Removes records of an earlier update, which a shell release does not remove. Taken for this update's, they would make the new system
/// roll back without tests, or commit without them.
fn remove_stale_records(paths: &Paths) -> Result<()> {
    let inactive = Facts::gather(paths).and_then(|facts| Ok(Roots::of(&facts)?.inactive()?.slot));
    match inactive {
        Ok(slot) if RollbackRecord::is_at_work(paths, slot) => return Ok(()),
        Ok(_) => {}
        Err(e) => {
            // The hook that selects a root reports why the roots are unknown.
            tracing::debug!("keeping the records of rollbacks: {e}");
            return Ok(());
        }
    }
    RollbackRecord::remove(paths)?;
    // Where copal installs, the record of this update exists already.
    if copal_follows(paths) { Ok(()) } else { Trial::remove(paths) }
}

fn lower_flags(paths: &Paths) -> Result<()> {
    Flag::ALL.into_iter().try_for_each(|flag| flag.lower(paths))
}

/// Whether the bootloader boots the running root. Until then only the breadcrumbs make the next boot continue.
fn is_settled(paths: &Paths) -> bool {
    let running = || -> Result<bool> {
        let roots = Roots::of(&Facts::gather(paths)?)?;
        Ok(detect(paths)?.read()?.root.means(&roots.active))
    };
    running().unwrap_or_else(|e| {
        tracing::debug!("cannot determine whether the running root is selected: {e}");
        false
    })
}

/// Whether copal called, which removes the breadcrumbs after it has selected the old root. After the hooks of a shell release no program
/// does, and remaining breadcrumbs would keep the supervisor from every reboot.
fn copal_follows(paths: &Paths) -> bool {
    Marker::read(paths)
        .unwrap_or_else(|e| {
            tracing::warn!("{e}; taking it for that of another boot");
            None
        })
        .is_some()
}

fn sweep(state: &Path) {
    if let Err(e) = Folder::open(state).and_then(|folder| file::sweep(&folder)) {
        tracing::warn!("cannot clean up {}: {e}", state.display());
    }
}

/// A shell release does not flush its files.
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
