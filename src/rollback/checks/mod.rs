//! The health checks of a system on trial.
//!
//! [`TABLE`] has a row for each. All of them run, even after a failure, so that the report is complete; one after the other, since the
//! device is just starting. None can delay the verdict: a check that hangs has failed at its limit.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::{Code, Error, Result};
use crate::state::files;
use crate::state::history::{Check, CheckResult};
use crate::sys::systemd::Bus;

mod board;
mod device_tree;
mod engine;
mod folder;
mod guard;
mod program;
mod units;
mod vpn;

const END_GRACE: Duration = Duration::from_secs(30);

pub struct Row {
    /// In the report. Checks in a folder are called `NAME/FILE`.
    pub name: &'static str,
    /// Whether the verdict depends on it.
    pub required: fn(&RollbackConf) -> bool,
    kind: CheckKind,
}

const ALWAYS: fn(&RollbackConf) -> bool = |_| true;
const NEVER: fn(&RollbackConf) -> bool = |_| false;

enum CheckKind {
    One(fn(&CheckContext) -> Finding),
    Several(fn(&CheckContext) -> Vec<PendingCheck>),
}

pub const TABLE: &[Row] = &[
    Row { name: "vpn", required: ALWAYS, kind: CheckKind::One(vpn::check) },
    Row { name: "engine", required: ALWAYS, kind: CheckKind::One(engine::check) },
    Row { name: "board", required: ALWAYS, kind: CheckKind::One(board::check) },
    Row { name: folder::REQUIRED, required: ALWAYS, kind: CheckKind::Several(folder::required) },
    Row { name: folder::REPORTED, required: NEVER, kind: CheckKind::Several(folder::reported) },
    Row {
        name: device_tree::CHECK_NAME,
        required: |conf| conf.device_tree_required,
        kind: CheckKind::Several(device_tree::where_named),
    },
    Row { name: "units", required: |conf| conf.units_required, kind: CheckKind::One(units::check) },
];

#[derive(Clone)]
struct CheckContext {
    paths: Paths,
    variables: PathBuf,
    /// The word for what `variables` has the state before.
    change: &'static str,
    limit: Duration,
    bus: Bus,
}

struct PendingCheck {
    name: String,
    look: Box<dyn FnOnce() -> Finding + Send>,
}

struct Finding {
    result: CheckResult,
    reason: String,
}

/// Takes at most the limit of `conf` plus half a minute for each check.
#[must_use]
pub fn run(paths: &Paths, conf: &RollbackConf) -> Vec<Check> {
    run_with(paths, conf, &Bus::system(), None)
}

/// With systemd on another bus, or with the file that the caller names for the state before its change.
#[must_use]
pub fn run_with(paths: &Paths, conf: &RollbackConf, bus: &Bus, variables: Option<&Path>) -> Vec<Check> {
    let (variables, change) = match variables {
        Some(named) => (named.to_path_buf(), "change"),
        None => (files::variables(paths), "update"),
    };
    let context =
        CheckContext { paths: paths.clone(), variables, change, limit: conf.check_limit, bus: bus.clone() };
    let mut checks = Vec::new();
    for row in TABLE {
        let required = (row.required)(conf);
        for job in row.jobs(&context) {
            checks.push(job.make(required, context.limit));
        }
    }
    checks
}

#[must_use]
pub fn passed(checks: &[Check]) -> bool {
    !checks.iter().any(counts_against)
}

pub fn judge(checks: &[Check]) -> Result<()> {
    let failed: Vec<&Check> = checks.iter().filter(|c| counts_against(c)).collect();
    let Some(first) = failed.first() else { return Ok(()) };
    let reasons: Vec<String> = failed.iter().map(|c| format!("{}: {}", c.name, c.reason)).collect();
    let message = format!("the system is not healthy: {}", reasons.join("; "));
    Err(Error::new(Code::HealthCheckFailed, message).object(&first.name))
}

fn counts_against(check: &Check) -> bool {
    check.required && check.result == CheckResult::Failed
}

impl Row {
    fn jobs(&self, context: &CheckContext) -> Vec<PendingCheck> {
        let context = context.clone();
        match self.kind {
            CheckKind::One(check) => vec![PendingCheck::new(self.name, move || check(&context))],
            CheckKind::Several(find) => {
                guard::within(END_GRACE, move || find(&context)).unwrap_or_else(|why| {
                    vec![PendingCheck::new(self.name, move || {
                        Finding::failed(format!("cannot list the checks: {why}"))
                    })]
                })
            }
        }
    }
}

impl PendingCheck {
    fn new(name: impl Into<String>, look: impl FnOnce() -> Finding + Send + 'static) -> Self {
        PendingCheck { name: name.into(), look: Box::new(look) }
    }

    fn make(self, required: bool, limit: Duration) -> Check {
        let begun = Instant::now();
        let finding =
            guard::within(limit.saturating_add(END_GRACE), self.look).unwrap_or_else(Finding::failed);
        let Finding { result, reason } = finding;
        let check =
            Check { name: self.name, required, result, reason, seconds: begun.elapsed().as_secs_f64() };
        log_check(&check);
        check
    }
}

impl Finding {
    fn passed(reason: impl Into<String>) -> Self {
        Finding { result: CheckResult::Passed, reason: reason.into() }
    }

    fn failed(reason: impl Into<String>) -> Self {
        Finding { result: CheckResult::Failed, reason: reason.into() }
    }

    fn unknown(reason: impl Into<String>) -> Self {
        Finding { result: CheckResult::Unknown, reason: reason.into() }
    }
}

fn log_check(check: &Check) {
    let Check { name, reason, .. } = check;
    let word = match check.result {
        CheckResult::Passed => "passed",
        CheckResult::Failed => "failed",
        CheckResult::Unknown => "unknown",
    };
    let seconds = format!("{:.3}", check.seconds);
    let only = if check.required { "" } else { " (only reported)" };
    let text = format!("health check {name}{only}: {word} after {seconds} s: {reason}");
    let warns = match check.result {
        CheckResult::Passed => false,
        // The verdict logs a failed required check.
        CheckResult::Failed => !check.required,
        // It counts as passed; the owner who requires it must know that it proves nothing.
        CheckResult::Unknown => check.required,
    };
    if warns {
        tracing::warn!(COPAL_CHECK = name, COPAL_RESULT = word, COPAL_DURATION = seconds, "{text}");
    } else {
        tracing::info!(COPAL_CHECK = name, COPAL_RESULT = word, COPAL_DURATION = seconds, "{text}");
    }
}
