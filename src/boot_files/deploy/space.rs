//! Refuses what does not fit, before the first change.

use std::path::Path;

use super::plan::Plan;
use crate::boot_files::{Budgets, Destination};
use crate::error::{Code, Result};

/// Bytes that stay free on each file system, as in the shell version.
const RESERVE: u64 = 512 << 10;

/// In bytes, without the path: a digest, two blanks, a newline.
const DIGEST_LINE: u64 = 32 + 2 + 1;

/// Follows the order of the writes: a new file must fit before the file that it replaces is freed.
pub(super) fn check(plan: &Plan, dest: &Destination, fingerprint: &Path) -> Result<()> {
    if !plan.changes() {
        return Ok(());
    }
    let mut budgets = Budgets::of(dest, RESERVE);
    for folder in &plan.folders {
        let (parent, name) = parts(folder);
        let budget = budgets.at(parent)?;
        budget.name(parent, name);
        budget.take(1);
        *budget.folder(folder) += 2;
    }
    for step in plan.steps.iter().filter(|s| !s.same) {
        let (parent, name) = parts(&step.to);
        let budget = budgets.at(parent)?;
        if step.old.is_none() {
            budget.name(parent, name);
        }
        budget.folder(parent);
        budget.replace(step.old.unwrap_or(0), step.size);
    }
    // New files make it longer; it is replaced last.
    let old = dest.root().entry(fingerprint.as_os_str()).ok().flatten().map_or(0, |e| e.size);
    let line = |path: &Path| DIGEST_LINE + u64::try_from(path.as_os_str().len()).unwrap_or(u64::MAX);
    let new: u64 = plan.steps.iter().filter(|s| s.old.is_none() || old == 0).map(|s| line(&s.to)).sum();
    let budget = budgets.at(Path::new(""))?;
    if old == 0 {
        budget.name(Path::new(""), fingerprint.as_os_str());
    }
    budget.replace(old, old + new);
    // An undo must also fit: it does not know which files only the new release has.
    budgets.reserve_for_undo();
    budgets.check().map_err(|e| match e.code() {
        Code::BootPartitionFull => e.with_hint(
            "remove files of your own from the boot partition, or use a release with smaller boot files",
        ),
        _ => e,
    })
}

fn parts(path: &Path) -> (&Path, &std::ffi::OsStr) {
    (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default())
}
