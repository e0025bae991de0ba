//! What the board's maker checks.
//!
//! The operating system comes with a program that checks nothing, for boards to replace. So where there is none, this root file system
//! is not what was built, or the board's check was lost in the build: the script `rollback-tests` failed then, and so does
//! this. A trial that goes back costs an update; a check that silently is none may cost the device.

use super::{Finding, Trial, program};

const PROGRAM: &str = "/usr/bin/rollback-board-healthcheck";

pub(super) fn check(trial: &Trial) -> Finding {
    program::check(&trial.paths.at(PROGRAM), "rollback-board-healthcheck", trial.limit)
}
