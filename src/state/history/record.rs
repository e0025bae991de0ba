//! One record, and its line.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::store::LINE_LIMIT;
use crate::error::Error;
use crate::slot::Slot;
use crate::sys::log::printable;

/// Version of the form. A reader takes every version, and of it what it knows: the record of a trial is written by the new release
/// and read by the old one.
pub const VERSION: u32 = 1;

/// Most checks, and most hooks, in a record; those that passed are left out first.
const MANY: usize = 40;
/// Longest name of anything, in bytes.
const NAME: usize = 120;
/// Longest reason of a check, in bytes.
const REASON: usize = 240;
/// Longest message of an error, in bytes.
const MESSAGE: usize = 2048;

/// What became of an update, or of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A release was installed; unless it was not selected, it is tried at the next boot.
    Installed,
    /// An update came to nothing.
    UpdateFailed,
    /// The new system stays.
    Committed,
    /// The device goes back from the new system, which has run.
    RolledBack,
    /// The bootloader gave up on the new system, and the device goes back.
    Altboot,
    /// The device could not go back.
    RollbackFailed,
    /// One of a later release of copal.
    #[serde(other)]
    Unknown,
}

impl Event {
    /// Its name in records and in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Event::Installed => "installed",
            Event::UpdateFailed => "update-failed",
            Event::Committed => "committed",
            Event::RolledBack => "rolled-back",
            Event::Altboot => "altboot",
            Event::RollbackFailed => "rollback-failed",
            Event::Unknown => "unknown",
        }
    }

    /// Whether it tells of a way back, rather than of an update on its way.
    #[must_use]
    pub const fn is_rollback(self) -> bool {
        matches!(self, Event::RolledBack | Event::Altboot | Event::RollbackFailed)
    }
}

/// What a system on trial was kept, or given up, for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The health checks.
    Checks,
    /// The operator requested it.
    Requested,
    /// The system before it is too old to go back to.
    TooOld,
    /// One of a later release of copal.
    #[serde(other)]
    Unknown,
}

/// A root partition, and the release on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Which one.
    pub slot: Slot,
    /// The release, from its os-release.
    #[serde(default)]
    pub version: Option<String>,
}

/// What a check has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    /// All is well.
    Passed,
    /// It is not.
    Failed,
    /// It cannot be told.
    #[serde(other)]
    Unknown,
}

/// A health check at the last attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// Whether the verdict depends on it.
    pub required: bool,
    /// What it came to.
    pub result: CheckResult,
    /// Why; empty where there is nothing to say.
    #[serde(default)]
    pub reason: String,
    /// How long it took.
    #[serde(default)]
    pub seconds: f64,
}

/// A hook, or a group of them that runs as one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Its name: the path below the hook directory, or `before`, `forward`, `after`, …
    pub name: String,
    /// Its exit status; `None` where it had none: it could not be started, or was ended by a signal.
    #[serde(default)]
    pub status: Option<i32>,
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable code of the error.
    pub code: String,
    /// What could not be done, and why.
    pub message: String,
}

impl From<&Error> for Failure {
    fn from(e: &Error) -> Self {
        Failure { code: e.code().as_str().to_owned(), message: e.message() }
    }
}

/// What became of an update, or of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`] of whoever wrote it.
    #[serde(default)]
    pub version: u32,
    /// The update that it belongs to: one number from the update's beginning to its verdict.
    pub transaction: String,
    /// When: RFC 3339, UTC, by the clock of the device.
    pub time: String,
    /// What happened.
    pub event: Event,
    /// Of a verdict on a trial, what it goes by; not in records of earlier releases.
    #[serde(default)]
    pub why: Option<Why>,
    /// The image, as it was named to the update.
    #[serde(default)]
    pub image: Option<String>,
    /// Where the device came from: of an update the system that ran, of a rollback the one that failed.
    #[serde(default)]
    pub from: Option<Side>,
    /// Where it goes.
    #[serde(default)]
    pub to: Option<Side>,
    /// The phase that the device was in when this began.
    #[serde(default)]
    pub phase: Option<String>,
    /// Boots that the bootloader has counted.
    #[serde(default)]
    pub bootcount: u32,
    /// How often that count was reset during the trial, because userspace was reached.
    #[serde(default)]
    pub resets: u32,
    /// How often the health checks were run.
    #[serde(default)]
    pub attempts: u32,
    /// The health checks, as the last attempt found them.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Hooks that ran.
    #[serde(default)]
    pub hooks: Vec<Hook>,
    /// Why it failed.
    #[serde(default)]
    pub error: Option<Failure>,
    /// The last lines of the journal of the boot that this is about, oldest first.
    #[serde(default)]
    pub journal: Vec<String>,
}

impl Record {
    /// A record of now, with nothing else known.
    #[must_use]
    pub fn new(transaction: impl Into<String>, event: Event) -> Record {
        Record {
            version: VERSION,
            transaction: transaction.into(),
            time: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            event,
            why: None,
            image: None,
            from: None,
            to: None,
            phase: None,
            bootcount: 0,
            resets: 0,
            attempts: 0,
            checks: Vec::new(),
            hooks: Vec::new(),
            error: None,
            journal: Vec::new(),
        }
    }

    /// Its line, with the line's end, at most [`LINE_LIMIT`] bytes: texts are cut, and of the journal the oldest lines left out.
    #[must_use]
    pub fn line(&self) -> String {
        let mut record = Record { journal: Vec::new(), ..self.clone() };
        record.clip();
        let room = LINE_LIMIT.saturating_sub(text(&record).len());
        record.journal = newest(&self.journal, room);
        text(&record)
    }

    /// Reads a line; `None` where it is damaged.
    #[must_use]
    pub fn of_line(line: &[u8]) -> Option<Record> {
        serde_json::from_slice(line).ok()
    }

    fn clip(&mut self) {
        let texts = [(&mut self.transaction, NAME), (&mut self.time, NAME)].into_iter();
        let sides = [&mut self.from, &mut self.to].into_iter().flatten().filter_map(|s| s.version.as_mut());
        let others = sides.chain(self.phase.as_mut()).map(|text| (text, NAME));
        let image = self.image.as_mut().map(|text| (text, REASON));
        texts.chain(others).chain(image).for_each(|(text, most)| clip(text, most));
        if let Some(error) = &mut self.error {
            clip(&mut error.code, NAME);
            clip(&mut error.message, MESSAGE);
        }
        leave_out(&mut self.checks, |check| check.result == CheckResult::Passed);
        for check in &mut self.checks {
            clip(&mut check.name, NAME);
            clip(&mut check.reason, REASON);
            check.seconds = milliseconds(check.seconds);
        }
        leave_out(&mut self.hooks, |hook| hook.status == Some(0));
        for hook in &mut self.hooks {
            clip(&mut hook.name, NAME);
        }
    }
}

/// JSON has no other numbers than finite ones.
fn milliseconds(seconds: f64) -> f64 {
    if seconds.is_finite() { (seconds * 1e3).round() / 1e3 } else { 0.0 }
}

fn text(record: &Record) -> String {
    // It has nothing that JSON cannot say.
    let mut line = serde_json::to_string(record).unwrap_or_default();
    line.push('\n');
    line
}

/// At most [`MANY`], those that went well being left out first, the oldest of the others then.
fn leave_out<T>(all: &mut Vec<T>, is_well: impl Fn(&T) -> bool) {
    let mut excess = all.len().saturating_sub(MANY);
    all.retain(|one| {
        let goes = excess > 0 && is_well(one);
        excess -= usize::from(goes);
        !goes
    });
    all.drain(..excess.min(all.len()));
}

/// The newest lines that fit into `room` bytes of JSON.
fn newest(lines: &[String], mut room: usize) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for line in lines.iter().rev() {
        let line = harmless(line, super::journal::LONGEST);
        let Ok(json) = serde_json::to_string(&line) else { break };
        let Some(left) = room.checked_sub(json.len() + 1) else { break };
        room = left;
        kept.push(line);
    }
    kept.reverse();
    kept
}

fn clip(text: &mut String, most: usize) {
    *text = harmless(text, most);
}

/// `text` without control characters, in at most `most` bytes.
pub(super) fn harmless(text: &str, most: usize) -> String {
    const CUT: &str = "…";
    let text = printable(text);
    if text.len() <= most {
        return text.into_owned();
    }
    let mut end = most.saturating_sub(CUT.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", text.get(..end).unwrap_or_default())
}
