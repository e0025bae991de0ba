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
use crate::sys::log;

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
        Spec::Flash(spec) => {
            let result = run_flash(&flash_args(spec, false, args), ui);
            result.inspect_err(|e| log::on_console(&e.to_string()))
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn flash(spec: FlashSpec, plan: bool) -> FlashArgs {
        let root = "/root".into();
        flash_args(
            spec,
            plan,
            &JobArgs { instance: "1".into(), ended: false, run_for: None, json: true, root },
        )
    }

    #[test]
    fn each_part_of_a_flash_is_passed_on() {
        let path = |name: &str| Some(PathBuf::from(name));
        let spec = FlashSpec {
            conf: path("/conf"),
            image: path("/image"),
            target: path("/target"),
            ..FlashSpec::default()
        };
        let args = flash(spec, true);
        assert_eq!((args.conf, args.image, args.target), (path("/conf"), path("/image"), path("/target")));
        assert_eq!((args.root, args.sha256, args.receipt, args.led), ("/root".into(), None, None, None));

        // One flag after the other.
        let none = FlashSpec::default;
        for (spec, expected) in [
            (none(), [false, false, false, true]),
            (FlashSpec { force_raw: true, ..none() }, [true, false, false, true]),
            (FlashSpec { single_pass: true, ..none() }, [false, true, false, true]),
            (FlashSpec { image_only: true, ..none() }, [false, false, true, true]),
            (FlashSpec { power_off: true, ..none() }, [false, false, false, false]),
        ] {
            for plan in [true, false] {
                let args = flash(spec.clone(), plan);
                let flags = [args.force_raw, args.single_pass, args.image_only, args.no_power_off];
                assert_eq!(flags, expected, "{spec:?}");
                assert_eq!((args.plan, args.json), (plan, true));
                assert_eq!((args.conf, args.image, args.target), (None, None, None));
            }
        }
    }
}
