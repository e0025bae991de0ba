//! `copal update`.

use std::path::{Path, PathBuf, absolute};

use clap::{ArgAction, ArgGroup, Args, ValueHint};

use super::{Ui, refuse_without_root};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::job::{Source, UpdateSpec};
use crate::job_client;
use crate::update::Installed;

const AFTER_HELP: &str = "\
Examples:
  copal update -i registry/os:6.1.2   install the release, and select it
  copal update -f os.docker -r        the same from an archive, and reboot
                                      when applications allow it

Exit codes:
  0  done: the inactive slot boots next (with --no-hooks: it is installed)
  1  a step after the update failed: the reboot, or the output
  2  wrong arguments
  3  refused: nothing was written
  4  failed after writing had begun: the message says what boots next
  5  busy: another update is running";

/// Install a release in the inactive slot, and select it
///
/// The new system boots on trial: if it fails, the device rolls back to this
/// one. The slot that is running is not touched.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, next_line_help = true, after_help = AFTER_HELP)]
#[command(group(ArgGroup::new("source").required(true)))]
pub(super) struct UpdateArgs {
    /// An image archive, as `docker save` writes it
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "source")]
    file: Option<PathBuf>,

    /// An image in a registry; without tag or digest, the tag `latest`
    #[arg(short, long, value_name = "IMAGE", group = "source")]
    image: Option<String>,

    /// Reboot afterwards, as soon as applications allow it
    #[arg(short, long)]
    reboot: bool,

    /// Run no hooks of the release: it is installed, and not selected
    #[arg(short = 'n', long = "no-hooks", action = ArgAction::SetFalse)]
    hooks: bool,

    /// When a hook fails, do not run those of the running system
    #[arg(short = 'x', long = "no-recovery", action = ArgAction::SetFalse)]
    recover: bool,

    /// Update on trial, after a fall back, or without a named device tree
    ///
    /// Also where only a recovery slot would unlock the disk.
    #[arg(long)]
    force: bool,

    /// Take a release whose loader has another key
    ///
    /// A power cut meanwhile leaves a device that does not start.
    #[arg(long)]
    accept_loader_key: bool,

    /// Run in this process, not as a job of systemd
    #[arg(long = "no-daemon", action = ArgAction::SetFalse)]
    as_job: bool,

    /// Progress and result as JSON lines on stdout
    #[arg(long)]
    json: bool,
}

pub(super) fn run_update(args: &UpdateArgs, ui: &Ui) -> Result<()> {
    let source = match (&args.file, &args.image) {
        (Some(file), _) => Source::File(absolute(file).unwrap_or_else(|_| file.clone())),
        (None, Some(image)) => Source::Reference(image.clone()),
        (None, None) => return Err(Error::new(Code::Usage, "--file or --image is needed")),
    };
    refuse_without_root("copal update", Path::new("/"))?;
    let UpdateArgs { hooks, recover, reboot, force, accept_loader_key, .. } = *args;
    let spec = UpdateSpec { source, hooks, recover, reboot, force, accept_loader_key };
    run(&spec, &Paths::default(), "copal update", args.as_job, ui)
}

/// The process of a job also calls this.
pub(super) fn run(spec: &UpdateSpec, paths: &Paths, program: &str, as_job: bool, ui: &Ui) -> Result<()> {
    job_client::update(spec, paths, program, as_job, ui.progress(), &|installed| {
        ui.result("update", installed, &summary(&spec.source, installed));
    })
}

fn summary(source: &Source, installed: &Installed) -> String {
    let slot = installed.slot.map_or_else(|| "of an image".to_owned(), |s| s.to_string());
    let next = if installed.selected { "it boots next, on trial" } else { "it was not selected" };
    format!("{source} is installed in slot {slot}; {next}")
}
