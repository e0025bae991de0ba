//! Progress as JSON lines: `docs/json.md`.

use std::io::Write;
use std::time::Duration;

use super::sink::{Due, Moment, Sink, Snapshot};
use crate::job::{Edge, Event, StageProgress};

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

impl<W: Write + Send> Sink for Json<W> {
    fn show(&mut self, s: &Snapshot) -> Due {
        let state = match s.moment {
            Moment::Begin => Some(Edge::Begin),
            Moment::Underway => None,
            Moment::End => Some(Edge::End),
        };
        let event = Event::Stage(StageProgress {
            stage: s.stage,
            state,
            percent: s.percent,
            bytes_done: s.done,
            bytes_total: s.total,
            rate: s.rate,
            eta: s.eta,
            job_percent: s.job.percent,
            job_eta: s.job.eta,
            job_eta_is_least: s.job.eta_is_least,
        });
        drop(self.out.write_all(event.to_line().as_bytes()).and_then(|()| self.out.flush()));
        Due::after(INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Outlook, Progress, Stage, meter::Meter};
    use super::*;
    use serde_json::Value;
    use std::io;
    use std::sync::{Arc, Mutex};

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
        let mut json = Json::new(out.clone());
        let underway = Snapshot {
            done: 1 << 18,
            total: Some(1 << 20),
            percent: Some(25),
            rate: Some(1 << 17),
            job: Outlook { percent: Some(12), eta: Some(9), eta_is_least: true },
            ..Snapshot::example()
        };
        let job = Outlook { percent: Some(0), ..Outlook::default() };
        let begin = Snapshot {
            moment: Moment::Begin,
            done: 0,
            percent: Some(0),
            rate: None,
            eta: None,
            job,
            ..underway
        };
        let end =
            Snapshot { moment: Moment::End, done: 1 << 20, percent: Some(100), eta: Some(0), ..underway };
        for snapshot in [begin, underway, end] {
            assert_eq!(json.show(&snapshot), Due::after(Duration::from_millis(250)));
        }

        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(
            text.lines().next().unwrap(),
            r#"{"event":"stage","version":1,"stage":"write","state":"begin","percent":0,"bytes_done":0,"bytes_total":1048576,"rate":null,"eta":null,"job_percent":0,"job_eta":null,"job_eta_is_least":false}"#
        );
        assert_eq!((&lines[1]["event"], lines[1].get("state")), (&"progress".into(), None));
        let numbers = ["percent", "bytes_done", "rate", "eta"].map(|key| lines[1][key].as_u64());
        assert_eq!(numbers, [25, 1 << 18, 1 << 17, 6].map(Some));
        assert_eq!((&lines[1]["job_percent"], &lines[1]["job_eta"]), (&12.into(), &9.into()));
        assert_eq!(lines[1]["job_eta_is_least"], true);
        let last = &lines[2];
        assert_eq!((&last["state"], &last["percent"], &last["eta"]), (&"end".into(), &100.into(), &0.into()));
        assert_eq!(lines.len(), 3);
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
