//! `copal rollback`, and the legacy names `rollback-…`, which take the same arguments.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Ui, answer, refuse_without_root};
use crate::config::paths::Paths;
use crate::config::rollback_conf::{self, RollbackConf};
use crate::error::Result;
use crate::rollback::manual::{self, Back};
use crate::rollback::{
    altboot, boot_check, check_version, checks, clear_bootcount, commit_hooks, health, parse_bootloader, stop,
};
use crate::state::history::{Check, CheckResult};
use crate::sys::systemd::Bus;

const AFTER_HELP: &str = "\
The system starts these at the right time: all but tests are for its units,
and for emergencies. `copal status` shows where a trial stands.

Examples:
  copal rollback tests      run the health checks, as a trial does
  copal rollback mark-good  commit the running system, without checks
  copal rollback now        roll back to the previous system

Environment:
  ROLLBACK_HEALTH_VARIABLES  for tests: absolute path of the file whose VPN
                             state is compared, instead of the last update's

Exit codes:
  0  done
  1  failed, or the answer is no
  2  wrong arguments
  3  refused: nothing was written
  4  failed after writing had begun";

/// Follow the trial of an update, or end it
#[derive(Debug, Subcommand)]
#[command(after_help = AFTER_HELP)]
pub(super) enum RollbackVerb {
    /// Test the system on trial, then commit it or roll back
    Health(HealthArgs),
    /// Complete the rollback after the bootloader has fallen back
    Altboot(Common),
    /// End a trial: the running system stays, without checks
    Stop(StopArgs),
    /// Commit the running system unchecked, and run commit hooks
    MarkGood(Common),
    /// Roll back a system on trial, or undo a pending update
    Now(Common),
    /// Run the health checks, and do nothing about them
    Tests(Common),
    /// At boot: make boot state, boot files and breadcrumbs agree
    BootCheck(Common),
    /// Run the commit hooks that a power cut has prevented
    CommitHooks(Common),
    /// Print whether the other system is new enough to roll back to
    CheckVersion(Common),
    /// Before an orderly reboot: it is no failed boot
    ClearBootcount(Common),
    /// Print what rollback-parse-bootloader defines in a shell
    ParseBootloader(RootArgs),
}

impl RollbackVerb {
    /// `None` for what only reads, and reads what every user may.
    fn for_root(&self) -> Option<(&'static str, &RootArgs)> {
        match self {
            RollbackVerb::Health(a) => Some(("health", &a.common.place)),
            RollbackVerb::Altboot(a) => Some(("altboot", &a.place)),
            RollbackVerb::BootCheck(a) => Some(("boot-check", &a.place)),
            RollbackVerb::CommitHooks(a) => Some(("commit-hooks", &a.place)),
            RollbackVerb::MarkGood(a) => Some(("mark-good", &a.place)),
            RollbackVerb::Now(a) => Some(("now", &a.place)),
            RollbackVerb::Tests(a) => Some(("tests", &a.place)),
            RollbackVerb::Stop(a) => Some(("stop", &a.common.place)),
            RollbackVerb::ClearBootcount(a) => Some(("clear-bootcount", &a.place)),
            RollbackVerb::CheckVersion(_) | RollbackVerb::ParseBootloader(_) => None,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(super) struct Common {
    /// The result as a JSON line on stdout
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: RootArgs,
}

#[derive(Debug, Clone, Args)]
pub(super) struct RootArgs {
    /// Folder that stands for / (for tests)
    #[arg(long, value_name = "DIR", hide = true, default_value = "/")]
    root: PathBuf,
}

impl RootArgs {
    fn paths(&self) -> Paths {
        Paths::new(&self.root)
    }
}

#[derive(Debug, Clone, Args)]
pub(super) struct HealthArgs {
    /// Seconds before each round of checks [default: rollback.conf or 60]
    #[arg(value_name = "TIMEOUT", allow_negative_numbers = true)]
    timeout: Option<OsString>,

    /// Rounds that may fail at most [default: rollback.conf or 15]
    #[arg(value_name = "COUNT", allow_negative_numbers = true)]
    count: Option<OsString>,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Args)]
pub(super) struct StopArgs {
    /// Also while the other system is selected; it stays selected
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    common: Common,
}

impl HealthArgs {
    /// What comes before the configuration. The shim passes the defaults unless a board has edited it: a default counts as not given.
    /// The configuration ignores what is no number, so that a mistake in the shim costs no trial its verdict.
    fn given(&self) -> Vec<OsString> {
        let defaults = [&rollback_conf::TIMEOUT, &rollback_conf::COUNT].map(|n| n.default.to_string());
        let given = [&self.timeout, &self.count].map(|g| g.clone().unwrap_or_default());
        given.into_iter().zip(defaults).map(|(g, d)| if g == *d { OsString::new() } else { g }).collect()
    }
}

struct Done {
    value: Value,
    text: String,
    /// An error where the answer is no.
    verdict: Result<()>,
}

impl Done {
    fn saying(text: &str) -> Done {
        Done { value: json!({ "text": text.trim_end() }), text: text.to_owned(), verdict: Ok(()) }
    }
}

/// For the process of a job.
pub(super) fn run_in_job(program: &Program, paths: &Paths, ui: &Ui) -> Result<()> {
    show(&start(program, paths)?, ui);
    Ok(())
}

fn show(done: &Done, ui: &Ui) {
    ui.result("rollback", &done.value, done.text.trim_end());
}

pub(super) fn run_rollback(verb: &RollbackVerb, ui: &Ui) -> Result<()> {
    let done = run(verb)?;
    match verb {
        RollbackVerb::ParseBootloader(_) => ui.text(&done.text),
        _ if done.verdict.is_err() => ui.finding("rollback", &done.value, done.text.trim_end()),
        _ => show(&done, ui),
    }
    done.verdict
}

/// As the program of that name: the answer alone on stdout.
pub(super) fn run_program(verb: &RollbackVerb) -> Result<()> {
    let done = run(verb)?;
    answer(done.text.as_bytes())?;
    done.verdict
}

fn run(verb: &RollbackVerb) -> Result<Done> {
    if let Some((name, place)) = verb.for_root() {
        refuse_without_root(&format!("copal rollback {name}"), &place.root)?;
    }
    match verb {
        RollbackVerb::Health(a) => start(&Program::Health(a.given()), &a.common.place.paths()),
        RollbackVerb::Altboot(a) => start(&Program::Altboot, &a.place.paths()),
        RollbackVerb::BootCheck(a) => start(&Program::BootCheck, &a.place.paths()),
        RollbackVerb::CommitHooks(a) => start(&Program::CommitHooks, &a.place.paths()),
        RollbackVerb::MarkGood(a) => start(&Program::MarkGood, &a.place.paths()),
        RollbackVerb::Now(a) => start(&Program::Now, &a.place.paths()),
        RollbackVerb::Tests(a) => start(&Program::Tests, &a.place.paths()),
        RollbackVerb::Stop(a) => {
            stop::run(&a.common.place.paths(), a.force)?;
            Ok(Done::saying("Rollback: the trial is over, and no rollback follows\n"))
        }
        RollbackVerb::CheckVersion(a) => {
            let line = check_version::line(&a.place.paths())?;
            Ok(Done::saying(&format!("{line}\n")))
        }
        RollbackVerb::ClearBootcount(a) => {
            clear_bootcount::run(&a.place.paths())?;
            Ok(Done::saying(""))
        }
        RollbackVerb::ParseBootloader(place) => {
            Ok(Done::saying(&parse_bootloader::assignments(&place.paths())?))
        }
    }
}

#[derive(Debug)]
pub(super) enum Program {
    Health(Vec<OsString>),
    Altboot,
    BootCheck,
    CommitHooks,
    Tests,
    MarkGood,
    Now,
}

fn start(job: &Program, paths: &Paths) -> Result<Done> {
    let none = Vec::new();
    let given = if let Program::Health(given) = job { given } else { &none };
    // A mistake in the owner's file or in an edited shim must not decide a trial.
    let conf = RollbackConf::on_trial(paths, given);
    match job {
        Program::Health(_) => health::run(paths, &conf)?,
        Program::Altboot => altboot::run(paths, &conf)?,
        Program::BootCheck => boot_check::run(paths, &conf)?,
        Program::CommitHooks => commit_hooks::run(paths, &conf)?,
        Program::Tests => {
            let variables = variables_of_caller(paths);
            return Ok(tested(&checks::run_with(paths, &conf, &Bus::system(), variables.as_deref())));
        }
        Program::MarkGood => manual::mark_good(paths, &conf)?,
        Program::Now => match manual::back(paths, &conf)? {
            Back::Undone => return Ok(Done::saying("the update is undone: the running system stays\n")),
        },
    }
    Ok(Done::saying(""))
}

/// A caller other than a trial names the file that has the state before its own change (meta-balena, pull request 3924).
fn variables_of_caller(paths: &Paths) -> Option<PathBuf> {
    let named = PathBuf::from(std::env::var_os("ROLLBACK_HEALTH_VARIABLES")?);
    if named.as_os_str().is_empty() {
        return None;
    }
    if !named.is_absolute() {
        tracing::warn!(
            "ROLLBACK_HEALTH_VARIABLES is not an absolute path: {}; it is ignored",
            named.display()
        );
        return None;
    }
    Some(paths.at(named))
}

fn tested(found: &[Check]) -> Done {
    let line = |check: &Check| {
        let result = match (check.result, check.required) {
            (CheckResult::Passed, _) => "ok      ",
            (CheckResult::Failed, true) => "FAILED  ",
            (CheckResult::Failed, false) => "failed  ",
            (CheckResult::Unknown, _) => "unknown ",
        };
        format!("{result}{}: {} ({:.1} s)\n", check.name, check.reason, check.seconds)
    };
    Done {
        value: json!({ "checks": found }),
        text: found.iter().map(line).collect(),
        verdict: checks::judge(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_as_it_comes_says_nothing() {
        let given = |timeout: Option<&str>, count: Option<&str>| {
            let common = Common { json: false, place: RootArgs { root: "/".into() } };
            HealthArgs { timeout: timeout.map(Into::into), count: count.map(Into::into), common }.given()
        };
        assert_eq!(given(Some("60"), Some("15")), ["", ""]);
        assert_eq!(given(None, None), ["", ""]);
        assert_eq!(given(Some("10"), Some("3")), ["10", "3"]);
    }
}
