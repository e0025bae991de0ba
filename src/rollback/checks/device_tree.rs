//! The kernel got the device tree that the owner names, if it did so before the update. A bootloader that does not find the file may
//! silently take its default.

use super::{CheckContext, Finding, PendingCheck};
use crate::device_tree::live::{self, NamedTree};
use crate::update::snapshot;

const MAX_NAMED: usize = 4;

pub(super) const CHECK_NAME: &str = "device-tree";

/// Nothing where the owner names no tree.
pub(super) fn where_named(context: &CheckContext) -> Vec<PendingCheck> {
    let named = live::named(&context.paths);
    let context = context.clone();
    let check = move || look(&context).unwrap_or_else(Finding::unknown);
    named.map(|_| PendingCheck::new(CHECK_NAME, check)).into_iter().collect()
}

/// The error says what is not known.
fn look(context: &CheckContext) -> Result<Finding, String> {
    let paths = &context.paths;
    let Some(named_tree) = NamedTree::of(paths)? else {
        return Ok(Finding::passed("no device tree is named any more"));
    };
    let name = named_tree.path.display();
    let before = snapshot::kept_device_tree(paths);
    let before =
        before.map_err(|e| format!("cannot read what was kept before this update: {}", e.message()))?;
    let before = before.filter(|before| before.path == named_tree.path);
    let before = before.ok_or_else(|| format!("nothing of {name} was kept before this update"))?;
    if !named_tree.is_there && !before.properties.is_empty() {
        return Ok(Finding::failed(format!("{name} is missing; the kernel got it before this update")));
    }
    let expected = named_tree.still_own(&before.properties);
    if expected.is_empty() {
        return Err(format!(
            "the kernel got no property of {name} before this update that its default lacks"
        ));
    }
    let found = named_tree.found(paths)?;
    let lost: Vec<&str> = expected.iter().copied().filter(|place| !found.contains(*place)).collect();
    // The default would have none of these values. Edits of a new bootloader, or an overlay of the owner, do not justify a rollback.
    if lost.len() < expected.len() {
        let (kept, all) = (expected.len() - lost.len(), expected.len());
        return Ok(Finding::passed(format!("the kernel got {name}, by {kept} of {all} properties")));
    }
    let named = lost.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = lost.len().saturating_sub(MAX_NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    Ok(Finding::failed(format!(
        "the kernel got another device tree than {name}: its {named}{more} is not there"
    )))
}
