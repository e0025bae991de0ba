//! `0-carry-boot`: carries the owner's device trees into the new release, before any other hook changes something.
//!
//! copal's own updater has carried them when the hooks run. That of a shell release carries nothing. A rollback runs the hooks of the previous
//! release in the same way.

use std::path::Path;

use crate::device_tree::{NewRelease, Outcome, settle};
use crate::disk::Facts;
use crate::error::{Error, Result};
use crate::hooks::Context;
use crate::slot::Roots;
use crate::state::files::{Marker, RollbackRecord};
use crate::state::phase::{self, UpdatePermission};

pub(super) fn run(context: &Context) -> Result<()> {
    let paths = &context.paths;
    let Ok(to) = paths.inactive().join("current/boot").canonicalize() else { return Ok(()) };
    if !context.during_update {
        return Ok(());
    }
    let release = NewRelease::read(paths, false);
    if release.is_empty() {
        return Ok(());
    }
    let roots = Roots::of(&Facts::gather(paths)?)?;
    let inactive = roots.inactive()?;
    let mut release = release.with_secure_boot(inactive.encrypted || roots.active.encrypted);
    let warn = |problems: Vec<Error>| problems.iter().for_each(|e| tracing::warn!("{}", e.message()));
    // The previous release has run with its own files, and nothing may stop a rollback to it.
    let goes_back = RollbackRecord::is_at_work(paths, inactive.slot)
        || !phase::observe(paths, &roots).is_ok_and(|seen| {
            matches!(seen.phase.update_permission(), UpdatePermission::Free | UpdatePermission::AfterRecovery)
        });
    if goes_back {
        warn(release.add_only(&to).problems);
        return Ok(());
    }
    if let Ok(Some(_)) = Marker::read(paths) {
        // copal has decided, and its caller may have forced it.
        warn(release.carry(&to).problems);
        return Ok(());
    }
    let has = |file: &Path| match file.strip_prefix("boot") {
        Ok(name) => to.join(name).is_file(),
        Err(_) => paths.at(file).is_file(),
    };
    let judgement = release.judge(&has, u64::MAX);
    judgement.warn();
    settle(judgement.problems, false)?;
    let Outcome { problems, .. } = release.carry(&to);
    settle(problems, false)
}
