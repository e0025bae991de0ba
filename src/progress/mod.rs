//! Progress: what stage a job is in and how far it has come.
//!
//! The job reports to a [`Progress`]; a [`meter::Meter`] computes numbers; sinks show them. No sink can fail or end the job.

use crate::sys::{log, output::BoundedOutput, terminal};

pub mod bar;
pub mod cloud;
pub mod dashboard;
pub mod fan;
pub mod json;
pub mod led;
pub mod lines;
pub mod meter;
pub mod sink;
pub mod status;

pub use crate::job::Stage;

use fan::Fan;
use meter::Meter;
use sink::{Sink, Snapshot};

/// Called from several threads.
pub trait Progress: Sync {
    /// `total` in bytes, where it is known.
    fn begin(&self, stage: Stage, total: Option<u64>);
    /// The total of the current stage, in bytes, once it becomes known.
    fn expect(&self, _total: u64) {}
    /// `bytes` more, not in all.
    fn advance(&self, bytes: u64);
    fn finish(&self);
    /// The job has ended, well or not. Nothing is shown after this.
    fn close(&self) {}
}

pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: Stage, _: Option<u64>) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}

pub type Shown = Meter<Fan>;

/// A bar on a terminal that can show one, lines otherwise. `prefix` stands before each line.
#[must_use]
pub(crate) fn for_stderr(prefix: &str) -> Shown {
    if Surroundings::of_stderr().can_show_a_bar() {
        shown(bar::Bar::new(prefix))
    } else {
        shown(lines::Lines::new(prefix, |_: &Snapshot, line: &str| log::stderr(line)))
    }
}

#[must_use]
pub(crate) fn for_programs() -> Shown {
    shown(json::Json::new(BoundedOutput::new(std::io::stdout())))
}

/// A bar where an operator started the service on a terminal, log events otherwise.
#[must_use]
pub(crate) fn for_service() -> Shown {
    if Surroundings::of_stderr().can_show_a_bar() { shown(bar::Bar::new("")) } else { for_journal() }
}

/// Log events, one every five percent, with the fields `COPAL_STAGE` and, where known, `COPAL_PERCENT`. Not together with lines on
/// stderr: the journal has these already.
#[must_use]
pub fn for_journal() -> Shown {
    shown(lines::Lines::new("", |s: &Snapshot, line: &str| {
        let (stage, percent) = (s.stage.to_string(), s.percent);
        tracing::info!(COPAL_STAGE = stage, COPAL_PERCENT = percent, "{line}");
    }))
}

fn shown(sink: impl Sink + 'static) -> Shown {
    Meter::new(Fan::of(Box::new(sink)))
}

/// Columns that a bar with its numbers needs.
const BAR_COLUMNS: u16 = 76;

#[derive(Debug, Clone, Copy)]
struct Surroundings {
    terminal: bool,
    /// In columns.
    width: Option<u16>,
    /// `TERM` is missing, empty or `dumb`.
    dumb: bool,
    /// `NO_COLOR` is set and not empty (no-color.org): no control codes.
    plain: bool,
}

impl Surroundings {
    fn of_stderr() -> Self {
        let term = std::env::var_os("TERM").unwrap_or_default();
        Surroundings {
            terminal: terminal::stderr_is_terminal(),
            width: terminal::stderr_width(),
            dumb: term.is_empty() || term == "dumb",
            plain: std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()),
        }
    }

    fn can_show_a_bar(self) -> bool {
        self.terminal && !self.dumb && !self.plain && self.width.is_none_or(|w| w >= BAR_COLUMNS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_needs_a_terminal_that_can_show_it() {
        let good = Surroundings { terminal: true, width: Some(80), dumb: false, plain: false };
        assert!(good.can_show_a_bar());
        assert!(Surroundings { width: None, ..good }.can_show_a_bar());
        for bad in [
            Surroundings { terminal: false, ..good },
            Surroundings { width: Some(40), ..good },
            Surroundings { dumb: true, ..good },
            Surroundings { plain: true, ..good },
        ] {
            assert!(!bad.can_show_a_bar(), "{bad:?}");
        }
    }
}
