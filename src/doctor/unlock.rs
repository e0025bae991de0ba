//! The encrypted disk of a device with UEFI and a TPM.

use std::path::Path;

use super::{Findings, Patient};
use crate::unlock;

pub(super) fn look(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let (Some(facts), Some(roots)) = (patient.facts, patient.roots) else { return };
    match unlock::encryption(facts, &roots.active) {
        Ok(partitions) => partitions.into_iter().for_each(|partition| match partition {
            Ok(text) => found.ok(text),
            Err(e) => found.problem(&e),
        }),
        Err(e) => found.problem(&e),
    }
    let look = match unlock::look(patient.paths, facts, &roots.active) {
        Ok(Some(look)) => look,
        Ok(None) => return,
        Err(e) => return found.problem(&e),
    };
    look.right.into_iter().for_each(|text| found.ok(text));
    look.wrong.iter().for_each(|e| found.problem(e));
    look.next_start.iter().for_each(|e| found.problem(e));
    look.doubtful.iter().for_each(|e| found.warn(e.message(), e.hint()));
    match unlock::signatures(patient.paths, &patient.paths.active()) {
        Ok(text) => found.ok(text),
        Err(e) => found.problem(&e),
    }
    found.ok(match unlock::why_scripts_may_unlock(patient.paths) {
        None => "each start has `copal unlock` in its initramfs: a commit drops the policies of starts that are past".to_owned(),
        Some(why) => format!("scripts may unlock the disk at a start, so policies of starts that are past are kept: {why}"),
    });
    match unlock::pending_lists(patient.paths) {
        Ok(0) => {}
        Ok(count) => found.ok(format!(
            "lists for dbx that wait for a commit: {count}; until then the firmware allows the programs of an earlier release"
        )),
        Err(e) => found.warn(e.message(), e.hint()),
    }
    if look.sealed.is_some_and(|sealed| !sealed.is_whole) {
        found.warn(
            "a change of the policy that unlocks the disk was cut off",
            "nothing to do: the next update completes it",
        );
    }
}

/// Whether the device would start a release that is not installed.
pub(super) fn release(patient: &Patient<'_>, release: &Path, found: &mut Findings<'_>) {
    let Some(roots) = patient.roots else { return };
    match unlock::reasons_against(patient.paths, &roots.active, release) {
        Ok(None) => found.ok(
            "this device does not unlock its disk by secure boot and a TPM, so the release needs no signatures here",
        ),
        Ok(Some(reasons)) if reasons.is_empty() => {
            found.ok("firmware and loader would start the release");
        }
        Ok(Some(reasons)) => reasons.iter().for_each(|e| found.problem(e)),
        Err(e) => found.problem(&e),
    }
}
