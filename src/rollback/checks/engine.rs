//! The container engine works: runs the engine's own check, which its watchdog also uses.

use super::{CheckContext, Finding, program};

const PROGRAM: &str = "/usr/lib/balena/balena-healthcheck";

pub(super) fn check(context: &CheckContext) -> Finding {
    program::check(&context.paths.at(PROGRAM), "balena-healthcheck", context.limit)
}
