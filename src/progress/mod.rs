//! Progress: what stage a job is in and how far it has come.
//!
//! The job reports to a [`Progress`]; a [`meter::Meter`] computes numbers; sinks show them. No sink can fail or end the job.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::sys::{log, output::BoundedOutput, terminal};

pub mod bar;
pub mod cloud;
pub mod dashboard;
pub mod fan;
mod forecast;
pub mod json;
pub mod led;
pub mod lines;
pub mod meter;
mod rate;
pub mod sink;
pub mod status;

pub use crate::job::Stage;
pub use forecast::{Outlook, Work};

use fan::Fan;
use lines::Pace;
use meter::Meter;
use sink::{Sink, Snapshot};

/// Called from several threads.
pub trait Progress: Sync {
    /// Announces the stages that have not begun. Percent and time left then cover all of them.
    fn plan(&self, _stages: &[Work]) {}
    /// What a sample of the work of a planned stage took.
    fn measured(&self, _stage: Stage, _bytes: u64, _time: Duration) {}
    /// `total` in bytes, where it is known.
    fn begin(&self, stage: Stage, total: Option<u64>);
    /// The total of the current stage, in bytes, once it becomes known; `None` where it is not known after all.
    fn expect(&self, _total: Option<u64>) {}
    /// `bytes` more, not in all.
    fn advance(&self, bytes: u64);
    /// The same for zeroes that do not cost what data costs.
    fn advance_zeroes(&self, bytes: u64, _took: Duration) {
        self.advance(bytes);
    }
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

/// A meter that is shown in regular intervals, even while nothing advances.
pub struct Shown(Arc<Meter<Fan>>);

/// From one look at what is due to the next.
const TICK: Duration = Duration::from_millis(500);

impl Shown {
    fn new(sink: impl Sink + 'static) -> Self {
        let meter = Arc::new(Meter::new(Fan::of(Box::new(sink))));
        let seen = Arc::downgrade(&meter);
        let watch = move || {
            while let Some(meter) = seen.upgrade() {
                meter.tick();
                drop(meter);
                std::thread::sleep(TICK);
            }
        };
        // Without a thread, what advances is still shown.
        if let Err(e) = std::thread::Builder::new().name("progress".to_owned()).spawn(watch) {
            tracing::debug!("no thread for the progress: {e}");
        }
        Shown(meter)
    }
}

impl Deref for Shown {
    type Target = Meter<Fan>;

    fn deref(&self) -> &Meter<Fan> {
        &self.0
    }
}

/// A bar on a terminal that can show one, lines otherwise.
#[must_use]
pub(crate) fn for_stderr() -> Shown {
    if Surroundings::of_stderr().can_show_a_bar() {
        Shown::new(bar::Bar::default())
    } else {
        Shown::new(lines::Lines::new(STREAM, |_: &Snapshot, line: &str| log::stderr(line)))
    }
}

#[must_use]
pub(crate) fn for_programs() -> Shown {
    Shown::new(json::Json::new(BoundedOutput::new(std::io::stdout())))
}

/// A bar where an operator started the service on a terminal, log events otherwise.
#[must_use]
pub(crate) fn for_service() -> Shown {
    if Surroundings::of_stderr().can_show_a_bar() { Shown::new(bar::Bar::default()) } else { for_journal() }
}

/// Log events at least every five percent, with the fields `COPAL_STAGE` and, where known, `COPAL_PERCENT` (of the whole job). Not together
/// with lines on stderr: the journal has these already.
#[must_use]
pub fn for_journal() -> Shown {
    Shown::new(lines::Lines::new(JOURNAL, |s: &Snapshot, line: &str| {
        let (stage, percent) = (s.stage.to_string(), s.job.percent);
        tracing::info!(COPAL_STAGE = stage, COPAL_PERCENT = percent, "{line}");
    }))
}

/// A person, or the log of another program. Eight seconds, and what a look comes late, are less than ten.
const STREAM: Pace =
    Pace { longest_interval: Duration::from_secs(8), has_all_edges: false, columns: terminal::stderr_width };

/// A journal is kept, often on flash memory.
const JOURNAL: Pace =
    Pace { longest_interval: Duration::from_secs(60), has_all_edges: true, columns: || None };

/// Columns that a bar with percent and time left needs. Below that, a line of its own for each state.
const BAR_COLUMNS: u16 = 30;

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
    fn what_stands_still_is_shown_too() {
        struct Count(Arc<std::sync::atomic::AtomicU32>);
        impl Sink for Count {
            fn show(&mut self, _: &Snapshot) -> sink::Due {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                sink::Due::after(TICK)
            }
        }
        let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let shown = Shown::new(Count(count.clone()));
        shown.begin(Stage::Write, Some(1));
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while count.load(std::sync::atomic::Ordering::Relaxed) < 3 {
            assert!(std::time::Instant::now() < end, "nothing is shown while nothing advances");
            std::thread::sleep(TICK / 10);
        }
    }

    #[test]
    fn a_bar_needs_a_terminal_that_can_show_it() {
        let good = Surroundings { terminal: true, width: Some(80), dumb: false, plain: false };
        assert!(good.can_show_a_bar());
        assert!(Surroundings { width: None, ..good }.can_show_a_bar());
        assert!(Surroundings { width: Some(30), ..good }.can_show_a_bar());
        for bad in [
            Surroundings { terminal: false, ..good },
            Surroundings { width: Some(29), ..good },
            Surroundings { dumb: true, ..good },
            Surroundings { plain: true, ..good },
        ] {
            assert!(!bad.can_show_a_bar(), "{bad:?}");
        }
    }
}
