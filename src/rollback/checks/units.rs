//! Fails if a unit that was active before the update is now in systemd's state `failed`. A unit that is missing or inactive does not count:
//! releases differ in their units. The verdict depends on it only if the owner requires it.

use std::collections::BTreeSet;

use super::{CheckContext, Finding};
use crate::sys::systemd;
use crate::update::snapshot;

/// Units that the reason of a failed check names.
const MAX_NAMED: usize = 8;

pub(super) fn check(context: &CheckContext) -> Finding {
    let kept = match snapshot::kept_units(&context.paths) {
        Ok(Some(units)) => units,
        Ok(None) => return Finding::unknown("no list of units was kept before this update"),
        Err(e) => return Finding::unknown(format!("cannot read the list of units: {}", e.message())),
    };
    if !systemd::is_running(context.paths.root()) {
        return Finding::unknown("systemd does not run here");
    }
    let failed = match context.bus.failed_units() {
        Ok(failed) => failed,
        Err(e) => return Finding::unknown(format!("cannot list the failed units: {e}")),
    };
    let before: BTreeSet<&str> = kept.iter().map(String::as_str).collect();
    let newly_failed: Vec<&str> = failed.iter().map(String::as_str).filter(|u| before.contains(u)).collect();
    if newly_failed.is_empty() {
        return Finding::passed(format!(
            "of {} units that were active before, none has failed",
            before.len()
        ));
    }
    let named = newly_failed.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = newly_failed.len().saturating_sub(MAX_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    Finding::failed(format!("failed, and active before the update: {named}{more}"))
}
