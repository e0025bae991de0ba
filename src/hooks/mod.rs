//! Hooks: programs of a release that run when it is installed, committed or restored.

pub mod builtin;
pub mod current;
pub mod legacy;
mod list;
mod runner;
mod running;

pub use list::{Hook, Phase, Phases};
pub use runner::{
    DURING_UPDATE, HOOK_LIMIT_VARIABLE, HOOKS_FOLDER, RUN_LIMIT, Ran, Run, Signals, Variables, limit, run,
    run_program,
};
pub use running::{RunningHook, running};

use crate::config::paths::Paths;

#[derive(Debug, Clone)]
pub struct Context {
    pub paths: Paths,
    /// `DURING_UPDATE=1`: a release is being installed. Otherwise the running release is restored.
    pub during_update: bool,
    /// The base name that the hook was called by.
    pub called: String,
}
