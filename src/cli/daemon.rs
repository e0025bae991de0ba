//! `copal daemon`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::config::paths::Paths;
use crate::daemon::{self, Options};
use crate::error::Result;

/// What `copal daemon` was asked.
#[derive(Debug, Clone, Args)]
pub(super) struct DaemonArgs {
    /// Seconds without a call and without a job after which it ends (for tests)
    #[arg(long, value_name = "SECONDS", hide = true)]
    pub(super) idle: Option<f32>,

    /// The program that does the jobs (for tests)
    #[arg(long, value_name = "FILE", hide = true)]
    pub(super) worker: Option<PathBuf>,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    pub(super) root: PathBuf,
}

/// Serves the system bus.
pub(super) fn run_daemon(args: &DaemonArgs) -> Result<()> {
    let default = Options::default();
    daemon::run(&Options {
        paths: Paths::new(&args.root),
        idle: args.idle.and_then(|s| Duration::try_from_secs_f32(s).ok()).unwrap_or(default.idle),
        worker: args.worker.clone().unwrap_or(default.worker),
    })
}
