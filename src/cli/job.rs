//! `copal job`: what the unit of a job runs.

use std::path::PathBuf;

use clap::Args;

use crate::config::paths::Paths;
use crate::daemon;
use crate::error::Result;

/// Run the job whose request is in /run/copal (for copal-job@.service)
#[derive(Debug, Clone, Args)]
pub(super) struct JobArgs {
    /// The instance of the unit
    #[arg(value_name = "JOB")]
    instance: String,

    /// Record how the unit has ended
    #[arg(long)]
    ended: bool,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

pub(super) fn run_job(args: &JobArgs) -> Result<()> {
    let paths = Paths::new(&args.root);
    if args.ended {
        return daemon::job_ended(&paths, &args.instance);
    }
    match daemon::run_job(&paths, &args.instance)? {}
}
