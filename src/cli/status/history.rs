//! Updates and verdicts, in words.

use crate::state::history::{Check, CheckResult, Event, Record, Side, Why};
use crate::status::Status;
use crate::sys::log::printable;

/// The last update and the last rollback, a line each, and below it what failed.
pub(super) fn last(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(update) = &status.last_update {
        lines.push(format!("updated  {}", headline(update)));
        lines.extend(details(update));
    }
    let Some(rollback) = &status.last_rollback else { return lines };
    lines.push(format!("rollback {}", headline(rollback)));
    lines.extend(details(rollback));
    if status.rollbacks > 1 {
        lines.push(format!("         {} rollbacks from this release are known", status.rollbacks));
    }
    if !rollback.journal.is_empty() {
        let slot = rollback.from.as_ref().map_or("the new system".to_owned(), |s| format!("slot {}", s.slot));
        lines.push(format!("         `copal status --log` shows the last lines of the journal of {slot}"));
    }
    lines
}

/// Every record, oldest first.
pub(super) fn all(records: &[Record]) -> Vec<String> {
    if records.is_empty() {
        return vec!["no update is known".to_owned()];
    }
    records.iter().flat_map(|r| std::iter::once(headline(r)).chain(details(r))).collect()
}

/// The last lines of the journal of the boot that the last rollback was from.
pub(super) fn journal(status: &Status) -> Vec<String> {
    match &status.last_rollback {
        None => vec!["no rollback is known".to_owned()],
        Some(r) if r.journal.is_empty() => {
            vec![format!("the record of the rollback of {} does not have journal lines", printable(&r.time))]
        }
        Some(r) => r.journal.iter().map(|line| printable(line).into_owned()).collect(),
    }
}

/// When and what.
fn headline(r: &Record) -> String {
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
        Event::Committed => format!("{to} {}", kept(r)),
        Event::RolledBack => format!("{way}: {}", given_up(r)),
        Event::Altboot => match r.bootcount {
            0 => format!("{way}: the bootloader fell back"),
            n => format!("{way}: the bootloader fell back, with a boot count of {n}"),
        },
        Event::RollbackFailed => format!("{way} FAILED"),
        Event::Unknown => "something that this release does not know".to_owned(),
    };
    printable(&format!("{}: {what}", r.time)).into_owned()
}

fn kept(r: &Record) -> &'static str {
    match r.why {
        Some(Why::Requested) => "was committed without checks: an operator requested it",
        Some(Why::TooOld) => "was committed without checks: the previous system is too old for a rollback",
        _ if r.attempts > 0 => "was committed",
        // Records of earlier releases say no more.
        _ => "was committed without checks",
    }
}

fn given_up(r: &Record) -> String {
    match r.why {
        Some(Why::Requested) => "an operator requested it".to_owned(),
        _ if r.attempts > 0 => format!("the health checks failed{}", times(r.attempts)),
        // A rollback that continues after a power cut does not know its reason.
        _ => "the reason is not known".to_owned(),
    }
}

/// What failed, required checks first, and what an update carried.
fn details(r: &Record) -> Vec<String> {
    let mut lines = Vec::new();
    let failed = |required| {
        r.checks.iter().filter(move |c: &&Check| c.result == CheckResult::Failed && c.required == required)
    };
    for check in failed(true).chain(failed(false)) {
        let only = if check.required { "" } else { " (not required)" };
        lines.push(format!("check {} failed{only}{}", check.name, reason(&check.reason)));
    }
    for hook in r.hooks.iter().filter(|h| h.status != Some(0)) {
        lines.push(match hook.status {
            Some(status) => format!("hooks {} ended with status {status}", hook.name),
            None => format!("hooks {} were ended", hook.name),
        });
    }
    for file in &r.carried {
        lines.push(format!("boot/{} was carried ({}, {} bytes)", file.name, file.origin, file.size));
    }
    lines.extend(r.error.as_ref().map(|e| format!("{} [{}]", e.message(), e.code_word())));
    if r.resets > 0 {
        lines.push(format!("userspace was reached{}", times(r.resets)));
    }
    lines.iter().map(|line| format!("         {}", printable(line))).collect()
}

fn side(side: Option<&Side>) -> String {
    match side {
        Some(Side { slot, version: Some(version) }) => format!("{version} in slot {slot}"),
        Some(Side { slot, version: None }) => format!("slot {slot}"),
        None => "an unknown slot".to_owned(),
    }
}

fn times(n: u32) -> String {
    match n {
        0 => String::new(),
        1 => " once".to_owned(),
        n => format!(" {n} times"),
    }
}

fn reason(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}
