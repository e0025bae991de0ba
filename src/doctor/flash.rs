//! What would stop a flash from this medium: its configuration, its image, and the disk to be written.

use super::{Findings, Verdict};
use crate::config::paths::Paths;
use crate::flasher::job::{Inputs, Request};

pub(super) const NAME: &str = "flash";

pub(super) fn look(paths: &Paths, found: &mut Findings<'_>) {
    let request = Request::of_environment(paths.clone());
    let inputs = match Inputs::read(&request) {
        Ok(inputs) => inputs,
        Err(e) => return found.problem(&e),
    };
    match inputs.target(paths) {
        Ok(target) => {
            found.add(Verdict::Ok, format!("{} would be written", target.name.display()), None, None);
        }
        Err(e) => found.problem(&e),
    }
}
