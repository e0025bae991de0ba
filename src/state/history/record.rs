//! A history record and its line.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::device_tree::Carried;
use crate::error::Error;
use crate::slot::Slot;
use crate::sys::log::printable;

/// Schema version. A reader accepts every version and ignores unknown keys: the new release writes the record of a trial, and the old
/// one reads it.
pub const VERSION: u32 = 1;

/// Bytes of a record.
pub const LINE_LIMIT: usize = 48 << 10;

/// Bytes of a journal line; the rest is cut.
pub(super) const JOURNAL_LINE_LIMIT: usize = 400;

/// Limit of checks, of hooks and of carried files in a record; checks and hooks that passed are left out first.
const MAX_ENTRIES: usize = 40;
const MAX_NAME_BYTES: usize = 120;
const MAX_REASON_BYTES: usize = 240;
const MAX_ERROR_BYTES: usize = 2048; // of its message

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A release was installed. It is tried at the next boot if it was selected.
    Installed,
    UpdateFailed,
    Committed,
    /// The new system ran and failed.
    RolledBack,
    /// The bootloader fell back to the previous system.
    Altboot,
    RollbackFailed,
    /// Written by a later release of copal.
    #[serde(other)]
    Unknown,
}

impl Event {
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

    #[must_use]
    pub(crate) const fn is_rollback(self) -> bool {
        matches!(self, Event::RolledBack | Event::Altboot | Event::RollbackFailed)
    }
}

/// The reason of a verdict on a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    Checks,
    Requested,
    /// The previous system is too old for a rollback.
    TooOld,
    /// Written by a later release of copal.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    pub slot: Slot,
    #[serde(default)]
    pub version: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    Passed,
    Failed,
    #[serde(other)]
    Unknown,
}

/// Of a health check, at the last attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    pub required: bool,
    pub result: CheckResult,
    /// Empty where there is nothing to say.
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub seconds: f64,
}

/// A hook, or a group of hooks that runs as one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// The path below the hook directory, or `before`, `forward`, `after`, …
    pub name: String,
    /// `None` where the hook could not be started, or a signal ended it.
    #[serde(default)]
    pub status: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`] of the writer.
    #[serde(default)]
    pub version: u32,
    /// Identifies the update, from its beginning to its verdict.
    pub transaction: String,
    /// RFC 3339, UTC, by the clock of the device.
    pub time: String,
    pub event: Event,
    /// Of a verdict on a trial; records of earlier releases lack it.
    #[serde(default)]
    pub why: Option<Why>,
    /// The image's name, as the caller gave it.
    #[serde(default)]
    pub image: Option<String>,
    /// Of an update the system that ran, of a rollback the one that failed.
    #[serde(default)]
    pub from: Option<Side>,
    #[serde(default)]
    pub to: Option<Side>,
    /// The phase when the update or rollback began.
    #[serde(default)]
    pub phase: Option<String>,
    /// Boot attempts.
    #[serde(default)]
    pub bootcount: u32,
    /// How often the boot count was reset during the trial, because userspace was reached.
    #[serde(default)]
    pub resets: u32,
    /// Runs of the health checks.
    #[serde(default)]
    pub attempts: u32,
    #[serde(default)]
    pub checks: Vec<Check>,
    #[serde(default)]
    pub hooks: Vec<Hook>,
    /// Files of the boot folder that the update carried into the new release.
    #[serde(default)]
    pub carried: Vec<Carried>,
    #[serde(default)]
    pub error: Option<Error>,
    /// Of the boot that the record is about, oldest first.
    #[serde(default)]
    pub journal: Vec<String>,
}

impl Record {
    /// Has the time, and nothing else.
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
            carried: Vec::new(),
            error: None,
            journal: Vec::new(),
        }
    }

    /// With a newline, at most [`LINE_LIMIT`] bytes: texts are cut, and the oldest journal lines left out.
    #[must_use]
    pub fn line(&self) -> String {
        let mut record = Record { journal: Vec::new(), ..self.clone() };
        record.clip();
        let space = LINE_LIMIT.saturating_sub(text(&record).len());
        record.journal = newest(&self.journal, space);
        text(&record)
    }

    /// `None` where it is damaged.
    #[must_use]
    pub fn of_line(line: &[u8]) -> Option<Record> {
        serde_json::from_slice(line).ok()
    }

    fn clip(&mut self) {
        let texts = [(&mut self.transaction, MAX_NAME_BYTES), (&mut self.time, MAX_NAME_BYTES)].into_iter();
        let sides = [&mut self.from, &mut self.to].into_iter().flatten().filter_map(|s| s.version.as_mut());
        let others = sides.chain(self.phase.as_mut()).map(|text| (text, MAX_NAME_BYTES));
        let image = self.image.as_mut().map(|text| (text, MAX_REASON_BYTES));
        texts.chain(others).chain(image).for_each(|(text, most)| clip(text, most));
        if let Some(error) = &mut self.error {
            error.shorten(MAX_REASON_BYTES, MAX_ERROR_BYTES, harmless);
        }
        leave_out(&mut self.checks, |check| check.result == CheckResult::Passed);
        for check in &mut self.checks {
            clip(&mut check.name, MAX_NAME_BYTES);
            clip(&mut check.reason, MAX_REASON_BYTES);
            check.seconds = milliseconds(check.seconds);
        }
        leave_out(&mut self.hooks, |hook| hook.status == Some(0));
        for hook in &mut self.hooks {
            clip(&mut hook.name, MAX_NAME_BYTES);
        }
        self.carried.truncate(MAX_ENTRIES);
        for file in &mut self.carried {
            clip(&mut file.name, MAX_NAME_BYTES);
        }
    }
}

/// JSON has finite numbers only.
fn milliseconds(seconds: f64) -> f64 {
    if seconds.is_finite() { (seconds * 1e3).round() / 1e3 } else { 0.0 }
}

fn text(record: &Record) -> String {
    // A record has nothing that JSON cannot express.
    let mut line = serde_json::to_string(record).unwrap_or_default();
    line.push('\n');
    line
}

/// Keeps at most [`MAX_ENTRIES`]: removes those that went well first, then the oldest.
fn leave_out<T>(all: &mut Vec<T>, is_well: impl Fn(&T) -> bool) {
    let mut excess = all.len().saturating_sub(MAX_ENTRIES);
    all.retain(|one| {
        let goes = excess > 0 && is_well(one);
        excess -= usize::from(goes);
        !goes
    });
    all.drain(..excess.min(all.len()));
}

/// The newest lines that fit into `space` bytes of JSON.
fn newest(lines: &[String], mut space: usize) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for line in lines.iter().rev() {
        let line = harmless(line, JOURNAL_LINE_LIMIT);
        let Ok(json) = serde_json::to_string(&line) else { break };
        let Some(left) = space.checked_sub(json.len() + 1) else { break };
        space = left;
        kept.push(line);
    }
    kept.reverse();
    kept
}

fn clip(text: &mut String, most: usize) {
    *text = harmless(text, most);
}

/// Without control characters, at most `most` bytes.
pub(super) fn harmless(text: &str, most: usize) -> String {
    const CUT: &str = "…";
    let text = printable(text);
    if text.len() <= most {
        return text.into_owned();
    }
    if most < CUT.len() {
        return String::new();
    }
    let mut end = most.saturating_sub(CUT.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", text.get(..end).unwrap_or_default())
}
