//! The check of the board's maker. The OS has a program that checks nothing, for boards to replace. Without any, this root file system is
//! not the one that was built, or the build lost the board's check: that is a failure, as in the script `rollback-tests`. An
//! unnecessary rollback costs an update; a missing check may cost the device.

use super::{CheckContext, Finding, program};

const PROGRAM: &str = "/usr/bin/rollback-board-healthcheck";

pub(super) fn check(context: &CheckContext) -> Finding {
    program::check(&context.paths.at(PROGRAM), "rollback-board-healthcheck", context.limit)
}
