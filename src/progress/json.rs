//! Progress as JSON lines: `docs/json.md`.

use std::io::Write;
use std::time::Duration;

use super::Stage;
use super::meter::{Due, Moment, Sink, Snapshot};

/// Schema version of all JSON lines. It rises when a key goes or changes its meaning, not when one is added.
pub const VERSION: u32 = 1;

const INTERVAL: Duration = Duration::from_millis(250);

pub struct Json<W> {
    out: W,
}

impl<W: Write + Send> Json<W> {
    /// A failed write is ignored: the job goes on without a reader.
    pub fn new(out: W) -> Self {
        Json { out }
    }
}

#[derive(serde::Serialize)]
struct Line {
    event: &'static str,
    version: u32,
    stage: Stage,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    percent: Option<u8>,
    bytes_done: u64,
    bytes_total: Option<u64>,
    rate: Option<u64>,
    eta: Option<u64>,
}

impl<W: Write + Send> Sink for Json<W> {
    fn show(&mut self, s: &Snapshot) -> Due {
        let (event, state) = match s.moment {
            Moment::Begin => ("stage", Some("begin")),
            Moment::Underway => ("progress", None),
            Moment::End => ("stage", Some("end")),
        };
        let line = Line {
            event,
            version: VERSION,
            stage: s.stage,
            state,
            percent: s.percent,
            bytes_done: s.done,
            bytes_total: s.total,
            rate: s.rate,
            eta: s.eta,
        };
        if let Ok(mut text) = serde_json::to_string(&line) {
            text.push('\n');
            drop(self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()));
        }
        Due::after(INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Progress, meter::Meter};
    use super::*;
    use serde_json::Value;
    use std::io;
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);
    impl Write for Shared {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(data);
            Ok(data.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_objects_at_most_four_a_second() {
        let out = Shared::default();
        let meter = Meter::new(Json::new(out.clone()));
        let start = Instant::now();
        meter.begin(Stage::Write, Some(1 << 20));
        while start.elapsed() < Duration::from_millis(600) {
            meter.advance(1);
            std::thread::sleep(Duration::from_millis(1));
        }
        let most = 1 + start.elapsed().as_millis() / INTERVAL.as_millis() + 1;
        meter.finish();

        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert!((3..=most).contains(&(lines.len() as u128)), "{text}");
        assert_eq!(
            text.lines().next().unwrap(),
            r#"{"event":"stage","version":1,"stage":"write","state":"begin","percent":0,"bytes_done":0,"bytes_total":1048576,"rate":null,"eta":null}"#
        );
        assert_eq!(lines[1]["event"], "progress");
        assert!(lines[1]["rate"].as_u64().is_some_and(|r| r > 0), "{text}");
        assert!(lines[1]["eta"].as_u64().is_some_and(|r| r > 0), "{text}");
        let last = lines.last().unwrap();
        assert_eq!((&last["state"], &last["percent"], &last["eta"]), (&"end".into(), &100.into(), &0.into()));
    }

    #[test]
    fn a_broken_pipe_is_nothing_to_the_job() {
        struct Broken;
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        let meter = Meter::new(Json::new(Broken));
        meter.begin(Stage::Check, None);
        meter.advance(7);
        meter.finish();
        meter.close();
    }
}
