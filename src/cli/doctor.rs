//! `copal doctor`.

use std::path::PathBuf;

use clap::Args;

use super::Ui;
use crate::config::paths::Paths;
use crate::doctor::{self, Finding, Subject, Verdict};
use crate::error::{Code, Error, Result, counted};

const EXAMPLES: &str = "\
Examples:
  copal doctor
  copal doctor --json
  copal doctor --update balenaos-6.2.0.docker";

/// Look for what would stop a flash, an update or a rollback
///
/// On a flasher medium it examines the installation, on an installed system the
/// next update and a rollback. Changes nothing. Exit code 1: there is a problem;
/// each line has its remedy.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct DoctorArgs {
    /// The findings as JSON lines on stdout
    #[arg(long)]
    json: bool,

    /// Also check whether a release would start here
    ///
    /// An image archive, or the folder of an unpacked release.
    #[arg(long, value_name = "IMAGE|ROOT")]
    update: Option<PathBuf>,

    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

/// [`Code::ProblemsFound`] where there is a problem.
pub(super) fn run_doctor(args: &DoctorArgs, ui: &Ui) -> Result<()> {
    let (subject, findings) = doctor::examine(&Paths::new(&args.root), args.update.as_deref());
    if args.update.is_some() && subject == Subject::Installation {
        let message = "cannot check a release: this is a flasher medium, and not an installed device";
        return Err(Error::new(Code::Usage, message)
            .object("--update")
            .with_hint("run it on the device that is to be updated"));
    }
    // On a device it is one of the findings.
    let missing = args.update.as_deref().filter(|release| subject == Subject::Nothing && !release.exists());
    if let Some(release) = missing {
        let message = format!("cannot check the release {}: it does not exist", release.display());
        return Err(Error::new(Code::ImageMissing, message).object(release.display()));
    }
    let (subject, is_examined) = (subject.words(), subject != Subject::Nothing);
    let head = is_examined.then(|| format!("examined: {subject}"));
    let text = head.into_iter().chain(findings.iter().map(line)).collect::<Vec<_>>().join("\n");
    let problems = findings.iter().filter(|f| f.verdict == Verdict::Problem).count();
    if problems == 0 {
        ui.result("doctor", &findings, &text);
        return Ok(());
    }
    ui.finding("doctor", &findings, &text);
    let what = counted(problems, "thing");
    Err(Error::new(Code::ProblemsFound, format!("{what} would stop {subject}")))
}

fn line(finding: &Finding) -> String {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok      ",
        Verdict::Warning => "warning ",
        Verdict::Problem => "PROBLEM ",
    };
    let code = finding.code.map(|c| format!(" [{c}]")).unwrap_or_default();
    let hint = finding.hint.as_deref().map(|h| format!("; {h}")).unwrap_or_default();
    format!("{verdict}{}: {}{code}{hint}", finding.check, finding.text)
}
