//! Updates and verdicts, in words.

use std::time::SystemTime;

use super::when::{day, doubt, minute, minute_utc};
use crate::progress::lines::size;
use crate::slot::Slot;
use crate::state::history::{Check, CheckResult, Event, Record, Side, Why};
use crate::state::phase::Phase;
use crate::status::Status;
use crate::sys::log::printable;

/// What a person must know first: the release that was tried last is gone again, and why. `None` once another was installed.
pub(super) fn rolled_back(status: &Status) -> Option<String> {
    let records = &status.records;
    let at = records.iter().rposition(|r| r.event.is_rollback())?;
    let (before, rest) = records.split_at_checked(at)?;
    let (last, later) = rest.split_first()?;
    if later.iter().any(|r| matches!(r.event, Event::Installed | Event::Committed)) {
        return None;
    }
    let runs = |side: &Option<Side>| side.as_ref().is_some_and(|s| status.running == Some(s.slot));
    let cause = match last.event {
        // The record of its begin has the reason; each attempt may have failed.
        Event::RollbackFailed => before
            .iter()
            .rev()
            .find(|r| {
                r.transaction == last.transaction && matches!(r.event, Event::RolledBack | Event::Altboot)
            })
            .map(full_cause),
        _ => Some(full_cause(last)),
    };
    let release = match &last.from {
        Some(Side { version: Some(version), .. }) => version.clone(),
        Some(Side { slot, .. }) => format!("slot {slot}"),
        None => "an unknown release".to_owned(),
    };
    let now = SystemTime::now();
    let clock = doubt(last, before, now).map(|why| format!(" ({why})")).unwrap_or_default();
    let on = format!("on {}{clock}", day(&last.time, now));
    let reason = cause.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let sentence = match last.event {
        // A later boot may have completed it.
        Event::RollbackFailed if !runs(&last.to) => {
            let error = last.error.as_ref().map(|e| format!(": {}", e.message())).unwrap_or_default();
            let reason = cause.map(|why| format!("; the reason to roll back: {why}")).unwrap_or_default();
            format!("the rollback from {release} FAILED {on}{error}{reason}")
        }
        // Not at its reboot yet.
        Event::RolledBack if runs(&last.from) => {
            let phases = [Phase::RollingBack, Phase::RolledBack].map(Phase::as_str);
            phases.into_iter().find(|phase| status.phase == Some(phase))?;
            format!("rolling back from {release}{reason}")
        }
        _ => format!("rolled back from {release} {on}{reason}"),
    };
    Some(printable(&sentence).into_owned())
}

/// The last update and the last rollback, a line each, and below it what failed.
pub(super) fn last(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(update) = &status.last_update {
        lines.push(format!("updated  {}", headline(update, status)));
        lines.extend(indented(details(update)));
    }
    let Some(rollback) = &status.last_rollback else { return lines };
    lines.push(format!("rollback {}", headline(rollback, status)));
    lines.extend(indented(details(rollback)));
    if status.rollbacks > 1 {
        lines.push(format!("         {} rollbacks from this release are known", status.rollbacks));
    }
    if !rollback.journal.is_empty() {
        let slot = rollback.from.as_ref().map_or("the new system".to_owned(), |s| format!("slot {}", s.slot));
        lines.push(format!("         `copal status --log` shows the last lines of the journal of {slot}"));
    }
    lines
}

/// A line for each record, oldest first.
pub(super) fn all(records: &[Record]) -> Vec<String> {
    if records.is_empty() {
        return vec!["no update is known".to_owned()];
    }
    let now = SystemTime::now();
    let mut rows = vec![["TIME (UTC)", "EVENT", "RELEASE", "DETAILS"].map(str::to_owned)];
    for (at, record) in records.iter().enumerate() {
        let doubt = doubt(record, records.get(..at).unwrap_or_default(), now);
        rows.push(row(record, doubt));
    }
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max();
    let [time, event, release] = [0, 1, 2].map(|column| width(column).unwrap_or_default());
    rows.iter()
        .map(|[a, b, c, d]| format!("{a:time$}  {b:event$}  {c:release$}  {d}").trim_end().to_owned())
        .collect()
}

/// The last lines of the journal of the boot that the last rollback was from.
pub(super) fn journal(status: &Status) -> Vec<String> {
    match &status.last_rollback {
        None => vec!["no rollback is known".to_owned()],
        Some(r) if r.journal.is_empty() => {
            vec![format!("the record of the rollback of {} does not have journal lines", minute_utc(&r.time))]
        }
        Some(r) => r.journal.iter().map(|line| printable(line).into_owned()).collect(),
    }
}

/// Time, event, release and details.
fn row(r: &Record, doubt: Option<&str>) -> [String; 4] {
    let (from, to) = (cell(r.from.as_ref()), cell(r.to.as_ref()));
    let image = r.image.as_ref().map(|image| format!("from {image}"));
    let (event, release, text) = match r.event {
        Event::Installed => ("installed", to, image),
        Event::UpdateFailed => ("update failed", to, image),
        Event::Committed => ("committed", to, unproven(r).map(|why| format!("without checks{why}"))),
        Event::RolledBack | Event::Altboot => ("rolled back", format!("{from} to {to}"), Some(cause(r))),
        Event::RollbackFailed => ("rollback failed", format!("{from} to {to}"), None),
        Event::Unknown => ("unknown", to, Some("this release does not know what happened".to_owned())),
    };
    // A part of the cause.
    let known = decisive(r).map(line_of_check);
    let details = details(r).into_iter().filter(|line| Some(line) != known.as_ref());
    let all: Vec<String> = doubt.map(str::to_owned).into_iter().chain(text).chain(details).collect();
    [minute(&r.time), event.to_owned(), release, all.join("; ")].map(|text| printable(&text).into_owned())
}

/// When and what.
fn headline(r: &Record, status: &Status) -> String {
    let to = side(r.to.as_ref());
    let way = format!("from {} to {to}", side(r.from.as_ref()));
    let what = match r.event {
        Event::Installed => match &r.image {
            Some(image) => format!("installed {to}, from {image}"),
            None => format!("installed {to}"),
        },
        Event::UpdateFailed => match &r.image {
            Some(image) => format!("installing {image} FAILED"),
            None => format!("installing {to} FAILED"),
        },
        Event::Committed => match unproven(r) {
            Some(why) => format!("{to} was committed without checks{why}"),
            None => format!("{to} was committed"),
        },
        Event::RolledBack => format!("{way}: {}", given_up(r)),
        Event::Altboot => format!("{way}: the bootloader fell back{}", count(r)),
        Event::RollbackFailed => format!("{way} FAILED"),
        Event::Unknown => "something that this release does not know".to_owned(),
    };
    let before = status.records.iter().rposition(|other| other == r).and_then(|at| status.records.get(..at));
    let clock = doubt(r, before.unwrap_or_default(), SystemTime::now());
    let clock = clock.map(|why| format!(" ({why})")).unwrap_or_default();
    printable(&format!("{}{clock}: {what}", minute_utc(&r.time))).into_owned()
}

/// Why a system was committed that passed no checks.
fn unproven(r: &Record) -> Option<&'static str> {
    match r.why {
        Some(Why::Requested) => Some(": an operator requested it"),
        Some(Why::TooOld) => Some(": the previous system is too old for a rollback"),
        _ if r.attempts > 0 => None,
        // Records of earlier releases say no more.
        _ => Some(""),
    }
}

fn given_up(r: &Record) -> String {
    match r.why {
        Some(Why::Requested) => "an operator requested it".to_owned(),
        _ if r.attempts > 0 => format!("the health checks failed{}", times(r.attempts)),
        // A rollback that continues after a power cut does not know its reason.
        _ => "the reason was not recorded".to_owned(),
    }
}

/// Why a release was rolled back, in a sentence that names the check.
fn cause(r: &Record) -> String {
    match decisive(r) {
        Some(check) => format!("health check `{}` {}", check.name, how(check)),
        None if r.event != Event::Altboot => given_up(r),
        None if r.resets == 0 => {
            format!("it did not reach its health checks, and the bootloader fell back{}", count(r))
        }
        None => format!(
            "it was restarted before its health checks had ended, and the bootloader fell back{}",
            count(r)
        ),
    }
}

/// [`cause`], with the other checks that decided on it.
fn full_cause(r: &Record) -> String {
    let others = failed(r, true).skip(1).filter(|_| decisive(r).is_some());
    others.fold(cause(r), |all, check| format!("{all}; `{}` failed too", check.name))
}

/// The first check that decided on a rollback.
fn decisive(r: &Record) -> Option<&Check> {
    match (r.event, r.why) {
        (Event::RolledBack, why) if why != Some(Why::Requested) => failed(r, true).next(),
        _ => None,
    }
}

fn failed(r: &Record, required: bool) -> impl Iterator<Item = &Check> {
    r.checks.iter().filter(move |c| c.result == CheckResult::Failed && c.required == required)
}

/// `failed 3 of 3 times: …`; earlier releases did not count.
fn how(check: &Check) -> String {
    match check.reason.as_str() {
        "" => "failed".to_owned(),
        counted if counted.starts_with("failed ") => counted.to_owned(),
        reason => format!("failed: {reason}"),
    }
}

fn line_of_check(check: &Check) -> String {
    let only = if check.required { "" } else { " (not required)" };
    format!("check {}{only} {}", check.name, how(check))
}

fn count(r: &Record) -> String {
    if r.bootcount == 0 { String::new() } else { format!(", with a boot count of {}", r.bootcount) }
}

/// What failed, required checks first, and what an update carried.
fn details(r: &Record) -> Vec<String> {
    let mut lines: Vec<String> = failed(r, true).chain(failed(r, false)).map(line_of_check).collect();
    for hook in r.hooks.iter().filter(|h| h.status != Some(0)) {
        lines.push(match hook.status {
            Some(status) => format!("hooks {} ended with status {status}", hook.name),
            None => format!("hooks {} could not start, or a signal ended them", hook.name),
        });
    }
    for file in &r.carried {
        lines.push(format!("boot/{} was carried ({}, {})", file.name, file.origin, size(file.size)));
    }
    lines.extend(r.error.as_ref().map(|e| format!("{} [{}]", e.message(), e.code_word())));
    // A trial begins with one start.
    if r.resets > 1 || (r.resets > 0 && r.event == Event::Altboot) {
        lines.push(format!("the new system had started{}", times(r.resets)));
    }
    lines
}

fn indented(lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().map(|line| format!("         {}", printable(&line)))
}

fn side(side: Option<&Side>) -> String {
    match side {
        Some(Side { slot, version: Some(version) }) => format!("{version} in slot {slot}"),
        Some(Side { slot, version: None }) => slot_words(*slot),
        None => "an unknown slot".to_owned(),
    }
}

/// As [`side`], for a column.
fn cell(side: Option<&Side>) -> String {
    match side {
        Some(Side { slot, version: Some(version) }) => format!("{version} ({slot})"),
        Some(Side { slot, version: None }) => slot_words(*slot),
        None => "unknown".to_owned(),
    }
}

fn slot_words(slot: Slot) -> String {
    format!("slot {slot}")
}

fn times(n: u32) -> String {
    match n {
        0 => String::new(),
        1 => " once".to_owned(),
        n => format!(" {n} times"),
    }
}
