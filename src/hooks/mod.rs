//! Hooks: programs of a release that run when it is installed, confirmed or undone.

pub mod builtin;
pub mod current;
pub mod legacy;
mod list;
mod runner;
mod running;

pub use list::{Hook, Phase, Phases};
pub use runner::{
    DIR, DURING_UPDATE, LIMIT, LIMIT_VARIABLE, Ran, Run, Signals, Variables, limit, run, run_program,
};
pub use running::{RunningHook, running};

use crate::config::paths::Paths;

/// What a built-in hook is told.
#[derive(Debug, Clone)]
pub struct Context {
    /// Where everything is.
    pub paths: Paths,
    /// Whether a release is being installed (`DURING_UPDATE=1`). Otherwise the one that runs is put back in its rights.
    pub during_update: bool,
    /// The base name it was called by.
    pub called: String,
}
