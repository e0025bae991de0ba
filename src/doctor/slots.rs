//! The two root partitions.

use super::{Findings, Patient};
use crate::slot::Root;
use crate::slot::hostapp;
use crate::update::preflight;

pub(super) fn look(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let Some(roots) = patient.roots else { return };
    let running = format!("slot {} runs, from {}", roots.active.slot, place(patient, &roots.active));
    found.ok(running);
    match roots.inactive() {
        Ok(other) => {
            found.ok(format!("slot {} is {}", other.slot, place(patient, other)));
            if let Err(e) = preflight::slot_is_writable(&patient.paths.inactive()) {
                found.problem(&e);
            }
        }
        Err(e) => found.problem(&e),
    }
    for (root, path) in
        [(Some(&roots.active), patient.paths.active()), (roots.inactive().ok(), patient.paths.inactive())]
    {
        let Some(root) = root else { continue };
        if hostapp::container(&path).is_none() {
            found.warn(
                format!("slot {} holds no complete hostapp", root.slot),
                "install an update: until then no rollback is possible",
            );
        }
    }
}

fn place(patient: &Patient<'_>, root: &Root) -> String {
    let name = patient.facts.and_then(|f| f.device(root.dev)).map(|d| d.name.as_str());
    let crypt = if root.encrypted { ", encrypted" } else { "" };
    format!("{} (partition {}{crypt})", name.unwrap_or("?"), root.index)
}
