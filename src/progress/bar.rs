//! A progress bar on stderr, for a terminal: one line that is drawn again and again.

use std::time::Duration;

use super::lines::{self, width};
use super::sink::{Due, Moment, Sink, Snapshot};
use crate::sys::{log, terminal};

const DRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Columns of a terminal that does not know its width, as serial consoles.
const USUAL_COLUMNS: u16 = 80;

/// Columns from which on the bar has its full length.
const WIDE: u16 = 60;

/// The stage of a job that has only one leaves a line.
#[derive(Default)]
pub struct Bar {
    has_stages: bool,
}

/// For a terminal of so many columns.
#[must_use]
pub(crate) fn text(s: &Snapshot, columns: u16) -> String {
    let Some(percent) = s.job.percent else { return lines::numbers(s, width(Some(columns))) };
    let length = if columns >= WIDE { 16 } else { 8 };
    let full = usize::from(percent) * length / 100;
    let head = if full < length { ">" } else { "" };
    let bar = format!("[{:length$}] ", format!("{}{head}", "=".repeat(full)));
    let numbers = lines::numbers(s, width(Some(columns)).saturating_sub(bar.len()));
    format!("{bar}{numbers}")
}

impl Sink for Bar {
    fn show(&mut self, snapshot: &Snapshot) -> Due {
        let is_last = snapshot.job.percent == Some(100);
        match snapshot.moment {
            Moment::End if is_last && self.has_stages => log::draw(None),
            Moment::End if is_last => log::stderr(&lines::line(snapshot, width(terminal::stderr_width()))),
            _ => log::draw(Some(&text(snapshot, terminal::stderr_width().unwrap_or(USUAL_COLUMNS)))),
        }
        self.has_stages |= snapshot.moment == Moment::End && !is_last;
        Due::after(DRAW_INTERVAL)
    }

    fn close(&mut self) {
        log::draw(None);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outlook;
    use super::*;

    #[test]
    fn the_bar_fits_and_keeps_what_matters_most() {
        let s = Snapshot::example();
        for (columns, expected) in [
            (100, "[=======>        ] 45 %, 1:02:05 left; write: 1.5 GiB of 2.0 GiB, 85.0 MiB/s"),
            (80, "[=======>        ] 45 %, 1:02:05 left; write: 1.5 GiB of 2.0 GiB, 85.0 MiB/s"),
            (76, "[=======>        ] 45 %, 1:02:05 left; write: 1.5 GiB of 2.0 GiB"),
            (40, "[===>    ] 45 %, 1:02:05 left; write"),
            (30, "[===>    ] 45 %, 1:02:05 left"),
        ] {
            assert_eq!(text(&s, columns), expected);
            assert!(text(&s, columns).len() < usize::from(columns));
        }
        let unknown = Snapshot { total: None, job: Outlook::default(), ..s };
        assert_eq!(text(&unknown, 80), "write: 1.5 GiB, 85.0 MiB/s");
        let done = Snapshot { job: Outlook { percent: Some(100), eta: Some(0), ..s.job }, ..s };
        assert!(text(&done, 30).starts_with("[========] 100 %"), "{}", text(&done, 30));
    }
}
