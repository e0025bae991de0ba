//! The container engine works: runs the engine's own check, which its watchdog also uses.

use super::{Finding, Trial, program};

const PROGRAM: &str = "/usr/lib/balena/balena-healthcheck";

pub(super) fn check(trial: &Trial) -> Finding {
    program::check(&trial.paths.at(PROGRAM), "balena-healthcheck", trial.limit)
}
