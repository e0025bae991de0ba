//! The container engine works: it has a check of its own, which its watchdog uses as well.

use super::{Finding, Trial, program};

const PROGRAM: &str = "/usr/lib/balena/balena-healthcheck";

pub(super) fn check(trial: &Trial) -> Finding {
    program::check(&trial.paths.at(PROGRAM), "balena-healthcheck", trial.limit)
}
