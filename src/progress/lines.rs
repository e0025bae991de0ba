//! Progress as lines, where no bar can be shown; and its words, for all who show it.

use std::time::{Duration, Instant};

use super::sink::{Due, Moment, Sink, Snapshot};

const STEP_PERCENT: u8 = 5;

/// No line of a stage follows the last one sooner.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// How often a line is written, and how long it may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// A line at the latest after this time shows that the job is alive.
    pub(super) longest_interval: Duration,
    /// Begin and end of a stage have a line each, however soon after the last one.
    pub(super) has_all_edges: bool,
    pub(super) columns: fn() -> Option<u16>,
}

pub struct Lines<F> {
    pace: Pace,
    write: F,
    percent: u8,
    written: Option<Instant>,
}

impl<F: FnMut(&Snapshot, &str) + Send> Lines<F> {
    /// `write` gets each line, without a newline.
    pub(super) fn new(pace: Pace, write: F) -> Self {
        Lines { pace, write, percent: 0, written: None }
    }

    fn is_due(&self, s: &Snapshot) -> bool {
        let Some(since) = self.written.map(|at| at.elapsed()) else { return true };
        let next = self.percent - self.percent % STEP_PERCENT + STEP_PERCENT;
        match s.moment {
            Moment::Begin | Moment::End => self.pace.has_all_edges || since >= SHORTEST_INTERVAL,
            Moment::Underway => {
                let has_moved = s.job.percent.is_some_and(|percent| percent >= next);
                since >= self.pace.longest_interval || has_moved && since >= SHORTEST_INTERVAL
            }
        }
    }
}

impl<F: FnMut(&Snapshot, &str) + Send> Sink for Lines<F> {
    fn show(&mut self, snapshot: &Snapshot) -> Due {
        if self.is_due(snapshot) {
            (self.write)(snapshot, &line(snapshot, width((self.pace.columns)())));
            self.percent = snapshot.job.percent.unwrap_or(0);
            self.written = Some(Instant::now());
        }
        Due::after(SHORTEST_INTERVAL)
    }
}

/// Columns for text. The last one stays free: in it, some terminals begin a new line.
#[must_use]
pub(crate) fn width(columns: Option<u16>) -> usize {
    columns.map_or(usize::MAX, |columns| usize::from(columns.saturating_sub(1)))
}

/// In at most `width` columns, as long as there are words that short.
#[must_use]
pub(super) fn line(s: &Snapshot, width: usize) -> String {
    let stage = s.stage;
    match s.moment {
        Moment::Begin => match s.total {
            Some(total) => fit([format!("{stage}: {} to do", size(total)), format!("{stage} begins")], width),
            None => format!("{stage} begins"),
        },
        Moment::Underway => numbers(s, width),
        Moment::End => {
            let rate = s.rate.map(|r| format!(", {}/s", size(r))).unwrap_or_default();
            let (done, time) = (size(s.done), clock(s.elapsed.as_secs()));
            let all = format!("{stage}: done, {done} in {time}{rate}");
            fit([all, format!("{stage}: done in {time}"), format!("{stage}: done")], width)
        }
    }
}

/// First what is of the whole job, then what is of the stage.
pub(super) fn numbers(s: &Snapshot, width: usize) -> String {
    let percent = s.job.percent.map(|percent| format!("{percent} %"));
    let least = if s.job.eta_is_least { "over " } else { "" };
    let left = s.job.eta.map(|eta| format!("{least}{} left", clock(eta)));
    let whole: Vec<String> = percent.clone().into_iter().chain(left).collect();
    let whole = whole.join(", ");
    let of = s.total.map(|total| format!(" of {}", size(total))).unwrap_or_default();
    let stage = format!("{}: {}{of}", s.stage, size(s.done));
    let rate = s.rate.map(|r| format!(", {}/s", size(r))).unwrap_or_default();
    if whole.is_empty() {
        return fit([format!("{stage}{rate}"), stage, s.stage.to_string()], width);
    }
    let last = percent.unwrap_or_else(|| whole.clone());
    let all =
        [format!("{whole}; {stage}{rate}"), format!("{whole}; {stage}"), format!("{whole}; {}", s.stage)];
    fit(all.into_iter().chain([whole, last]), width)
}

/// The first that fits, or else the last.
fn fit(texts: impl IntoIterator<Item = String>, width: usize) -> String {
    let mut shortest = String::new();
    for text in texts {
        shortest = text;
        if shortest.chars().count() <= width {
            break;
        }
    }
    shortest
}

/// A text that is longer than `width` columns, in lines that are broken between words. A longer word, as a digest or a path, has a line of
/// its own: it can be copied.
#[must_use]
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    if text.chars().count() <= width {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// As [`wrap`], with longer words broken, too: for a screen whose lines are counted.
#[must_use]
pub(crate) fn wrap_all(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let pieces = |line: String| {
        let characters: Vec<char> = line.chars().collect();
        characters.chunks(width).map(|piece| piece.iter().collect()).collect::<Vec<String>>()
    };
    if text.is_empty() {
        vec![String::new()]
    } else {
        wrap(text, width).into_iter().flat_map(pieces).collect()
    }
}

/// Binary units with one decimal, rounded down.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = bytes.ilog2() / 10;
    let unit = usize::try_from(exponent - 1).ok().and_then(|i| UNITS.get(i)).unwrap_or(&"?");
    let tenths = (u128::from(bytes) * 10) >> (10 * exponent);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// `m:ss` or `h:mm:ss`.
pub(crate) fn clock(seconds: u64) -> String {
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

#[cfg(test)]
mod tests {
    use super::super::Outlook;
    use super::*;

    /// The lines of these snapshots, each with a pause before it, in seconds.
    fn lines(pace: Pace, snapshots: &[(f64, Snapshot)]) -> Vec<String> {
        let mut out = Vec::new();
        let mut sink = Lines::new(pace, |_: &Snapshot, line: &str| out.push(line.to_owned()));
        for (pause, snapshot) in snapshots {
            sink.written = sink.written.and_then(|at| at.checked_sub(Duration::from_secs_f64(*pause)));
            sink.show(snapshot);
        }
        out
    }

    #[test]
    fn lines_are_a_second_apart_and_come_in_time() {
        let stream =
            Pace { longest_interval: Duration::from_secs(8), has_all_edges: false, columns: || None };
        let at = |moment, percent| {
            let job = Outlook { percent: Some(percent), ..Outlook::default() };
            Snapshot { moment, job, ..Snapshot::example() }
        };
        let run = [
            (0.0, at(Moment::Begin, 0)),
            (0.5, at(Moment::Underway, 50)),
            (0.6, at(Moment::Underway, 50)),
            (2.0, at(Moment::Underway, 54)),
            (6.1, at(Moment::Underway, 54)),
            (0.1, at(Moment::End, 60)),
            (0.1, at(Moment::Begin, 60)),
            (1.0, at(Moment::End, 99)),
        ];
        let begins = |all: Vec<String>| -> Vec<String> {
            all.iter().map(|line| line.split([',', ';']).next().unwrap_or_default().to_owned()).collect()
        };
        let expected = ["write: 2.0 GiB to do", "50 %", "54 %", "write: done"];
        assert_eq!(begins(lines(stream, &run)), expected);
        let journal = Pace { has_all_edges: true, ..stream };
        let expected =
            ["write: 2.0 GiB to do", "50 %", "54 %", "write: done", "write: 2.0 GiB to do", "write: done"];
        assert_eq!(begins(lines(journal, &run)), expected);
    }

    #[test]
    fn numbers_read_well() {
        let s = Snapshot::example();
        assert_eq!(line(&s, usize::MAX), "45 %, 1:02:05 left; write: 1.5 GiB of 2.0 GiB, 85.0 MiB/s");
        let least = Outlook { eta_is_least: true, ..s.job };
        assert!(line(&Snapshot { job: least, ..s }, 80).starts_with("45 %, over 1:02:05 left; "));
        let s = Snapshot { total: None, percent: None, eta: None, job: Outlook::default(), ..s };
        assert_eq!(line(&s, usize::MAX), "write: 1.5 GiB, 85.0 MiB/s");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(u64::MAX), "15.9 EiB");
        assert_eq!(clock(59), "0:59");
    }

    #[test]
    fn a_narrow_terminal_gets_what_fits() {
        let s = Snapshot::example();
        for (columns, expected) in [
            (80, "45 %, 1:02:05 left; write: 1.5 GiB of 2.0 GiB, 85.0 MiB/s"),
            (50, "45 %, 1:02:05 left; write: 1.5 GiB of 2.0 GiB"),
            (40, "45 %, 1:02:05 left; write"),
            (20, "45 %, 1:02:05 left"),
            (10, "45 %"),
        ] {
            assert_eq!(line(&s, width(Some(columns))), expected);
        }
        let end = Snapshot { moment: Moment::End, ..s };
        for (columns, expected) in [
            (80, "write: done, 1.5 GiB in 0:09, 85.0 MiB/s"),
            (40, "write: done in 0:09"),
            (20, "write: done in 0:09"),
            (15, "write: done"),
        ] {
            assert_eq!(line(&end, width(Some(columns))), expected);
        }
        let begin = Snapshot { moment: Moment::Begin, ..s };
        assert_eq!(line(&begin, width(Some(20))), "write begins");
    }
}
