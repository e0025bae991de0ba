//! `copal job`: the process of a job's unit.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;

use super::flash::{FlashArgs, run_flash};
use super::rollback::{Program, run_in_job};
use super::{Ui, update};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::job::{self, FlashSpec, Spec};

/// Run the job whose request is in /run/copal (for copal-job@.service)
#[derive(Debug, Clone, Args)]
pub(super) struct JobArgs {
    /// The instance of the unit
    #[arg(value_name = "JOB")]
    instance: String,

    /// Record how the unit has ended
    #[arg(long)]
    ended: bool,

    /// Run the taken request of this program
    #[arg(long, value_name = "PROGRAM", conflicts_with = "ended")]
    run_for: Option<String>,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    json: bool,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

pub(super) fn run_job(args: &JobArgs, ui: &Ui) -> Result<()> {
    let paths = Paths::new(&args.root);
    if args.ended {
        return job::record_end(&paths, &args.instance);
    }
    let Some(program) = &args.run_for else { match job::become_job(&paths, &args.instance)? {} };
    match job::take_spec(&paths, &args.instance)? {
        Spec::Update(spec) => update::run(&spec, &paths, program, false, ui),
        Spec::Flash(spec) => run_flash(&flash_args(spec, false, args), ui),
        Spec::Plan(spec) => run_flash(&flash_args(spec, true, args), ui),
        Spec::Rollback => run_in_job(&Program::Now, &paths, ui),
        Spec::MarkGood => run_in_job(&Program::MarkGood, &paths, ui),
    }
}

fn flash_args(spec: FlashSpec, plan: bool, args: &JobArgs) -> FlashArgs {
    let FlashSpec { conf, image, target, force_raw, single_pass, image_only, power_off } = spec;
    FlashArgs {
        conf,
        image,
        target,
        plan,
        json: true,
        force_raw,
        single_pass,
        image_only,
        no_power_off: !power_off,
        root: args.root.clone(),
        ..FlashArgs::default()
    }
}

/// The program that requested the job of this process. Log lines begin with its name.
pub(crate) fn job_requested_by(args: &[OsString]) -> Option<&OsStr> {
    let (verb, rest) = args.split_first()?;
    let program = rest.iter().find_map(|arg| arg.as_bytes().strip_prefix(b"--run-for="));
    program.filter(|_| verb == "job").map(OsStr::from_bytes)
}
