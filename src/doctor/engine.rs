//! The container engine of the host.

use super::{Findings, Patient};
use crate::engine::Engine;

pub(super) fn look(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let root = match Engine::connect(patient.paths).and_then(|e| e.data_root()) {
        Ok(root) => root,
        Err(e) => return found.problem(&e),
    };
    let expected = crate::slot::INACTIVE.to_owned() + "/balena";
    if root == std::path::Path::new(&expected) {
        found.ok(format!("the engine answers, and keeps its data in {}", root.display()));
    } else {
        found.warn(
            format!("the engine answers, and keeps its data in {}, not in {expected}", root.display()),
            "look at balena-host.service: an update must go to the other root partition",
        );
    }
}
