//! `copal daemon`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::refuse_without_root;
use crate::config::paths::Paths;
use crate::daemon::{self, ServiceOptions};
use crate::error::Result;

const EXAMPLES: &str = "\
Examples:
  busctl introspect io.balena.Copal1 /io/balena/Copal1
  busctl call io.balena.Copal1 /io/balena/Copal1 io.balena.Copal1.Manager \\
    Update 'sa{sv}' registry/os:6.1.2 0";

/// Serve updates on the system bus, as io.balena.Copal1
///
/// systemd starts it when a client calls it; it exits when it is idle. Each job
/// is a unit of its own, and goes on without the client and the daemon.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct DaemonArgs {
    /// Seconds without a call and without a job after which it ends (for tests)
    #[arg(long, value_name = "SECONDS", hide = true)]
    idle: Option<f32>,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

pub(super) fn run_daemon(args: &DaemonArgs) -> Result<()> {
    refuse_without_root("copal daemon", &args.root)?;
    let default = ServiceOptions::default();
    daemon::run(&ServiceOptions {
        paths: Paths::new(&args.root),
        idle: args.idle.and_then(|s| Duration::try_from_secs_f32(s).ok()).unwrap_or(default.idle),
    })
}
