//! Progress as lines, where no bar can be shown: at each stage's begin and end, and every five percent.

use std::time::Duration;

use super::sink::{Due, Moment, Sink, Snapshot};

const STEP_PERCENT: u8 = 5;

/// With the total unknown, a line this often shows that the job is alive.
const SILENCE_INTERVAL: Duration = Duration::from_secs(60);

pub struct Lines<F> {
    prefix: String,
    write: F,
    shown: u8,
}

impl<F: FnMut(&Snapshot, &str) + Send> Lines<F> {
    /// `write` gets each line, with `prefix` and without a newline.
    pub fn new(prefix: &str, write: F) -> Self {
        Lines { prefix: prefix.to_owned(), write, shown: 0 }
    }

    fn due(&self, snapshot: &Snapshot) -> Due {
        match snapshot.total {
            None => Due::after(SILENCE_INTERVAL),
            Some(total) => {
                let next = self.shown - self.shown % STEP_PERCENT + STEP_PERCENT;
                let bytes = (u128::from(total) * u128::from(next)).div_ceil(100);
                // The end of the stage has a line of its own.
                let bytes = if next >= 100 { u64::MAX } else { u64::try_from(bytes).unwrap_or(u64::MAX) };
                Due { bytes, after: Duration::MAX }
            }
        }
    }
}

impl<F: FnMut(&Snapshot, &str) + Send> Sink for Lines<F> {
    fn show(&mut self, snapshot: &Snapshot) -> Due {
        self.shown = snapshot.percent.unwrap_or(0);
        (self.write)(snapshot, &format!("{}{}", self.prefix, line(snapshot)));
        self.due(snapshot)
    }
}

#[must_use]
pub fn line(s: &Snapshot) -> String {
    match s.moment {
        Moment::Begin => match s.total {
            Some(total) => format!("{}: {} to do", s.stage, size(total)),
            None => format!("{}: begins", s.stage),
        },
        Moment::Underway => format!("{}: {}", s.stage, numbers(s)),
        Moment::End => {
            let rate = s.rate.map(|r| format!(", {}/s", size(r))).unwrap_or_default();
            format!("{}: done, {} in {}{rate}", s.stage, size(s.done), clock(s.elapsed.as_secs()))
        }
    }
}

pub(super) fn numbers(s: &Snapshot) -> String {
    let mut parts = Vec::with_capacity(4);
    if let Some(percent) = s.percent {
        parts.push(format!("{percent} %"));
    }
    parts.push(match s.total {
        Some(total) => format!("{} of {}", size(s.done), size(total)),
        None => size(s.done),
    });
    parts.extend(s.rate.map(|r| format!("{}/s", size(r))));
    parts.extend(s.eta.map(|t| format!("{} left", clock(t))));
    parts.join(", ")
}

/// Binary units with one decimal, rounded down.
fn size(bytes: u64) -> String {
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
fn clock(seconds: u64) -> String {
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

#[cfg(test)]
mod tests {
    use super::super::{Progress, Stage, meter::Meter};
    use super::*;
    use std::sync::{Arc, Mutex};

    fn run(total: Option<u64>, steps: u64, each: u64) -> Vec<String> {
        let out = Arc::new(Mutex::new(Vec::new()));
        let kept = out.clone();
        let meter = Meter::new(Lines::new("> ", move |_: &Snapshot, l: &str| {
            kept.lock().unwrap().push(l.to_owned());
        }));
        meter.begin(Stage::Write, total);
        (0..steps).for_each(|_| meter.advance(each));
        meter.finish();
        out.lock().unwrap().clone()
    }

    #[test]
    fn one_line_per_stage_and_one_per_five_percent() {
        let lines = run(Some(1000 << 20), 1000, 1 << 20);
        assert_eq!(lines.len(), 1 + 19 + 1, "{lines:#?}");
        assert_eq!(lines[0], "> write: 1000.0 MiB to do");
        for (i, line) in lines[1..20].iter().enumerate() {
            assert!(line.starts_with(&format!("> write: {} %, ", (i + 1) * 5)), "{line}");
        }
        assert!(lines[20].starts_with("> write: done, 1000.0 MiB in 0:0"), "{}", lines[20]);
        assert!(lines.iter().all(|l| !l.chars().any(char::is_control)));
    }

    #[test]
    fn a_leap_is_one_line() {
        let lines = run(Some(100), 2, 50);
        assert_eq!(lines.len(), 4, "{lines:#?}");
        assert!(lines[1].starts_with("> write: 50 %"));
        // All bytes are there, success is not.
        assert!(lines[2].starts_with("> write: 99 %"));
    }

    #[test]
    fn an_unknown_total_is_begin_and_end() {
        assert_eq!(run(None, 1000, 1)[0], "> write: begins");
        assert_eq!(run(None, 1000, 1).len(), 2);
        assert_eq!(run(Some(0), 0, 0)[0], "> write: 0 B to do");
    }

    #[test]
    fn numbers_read_well() {
        let s = Snapshot {
            stage: Stage::Verify,
            moment: Moment::Underway,
            done: 3 << 29,
            total: Some(2 << 30),
            percent: Some(75),
            rate: Some(85 << 20),
            eta: Some(3725),
            elapsed: Duration::from_secs(9),
        };
        assert_eq!(line(&s), "verify: 75 %, 1.5 GiB of 2.0 GiB, 85.0 MiB/s, 1:02:05 left");
        let s = Snapshot { total: None, percent: None, eta: None, rate: None, ..s };
        assert_eq!(line(&s), "verify: 1.5 GiB");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(u64::MAX), "15.9 EiB");
        assert_eq!(clock(59), "0:59");
    }
}
