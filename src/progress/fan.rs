//! One progress for several sinks: begin and end of a stage go to all, the rest to those that are due.

use std::time::Duration;

use super::sink::{Due, Moment, Sink, Snapshot};

#[derive(Default)]
pub struct Fan {
    sinks: Vec<Member>,
}

struct Member {
    sink: Box<dyn Sink>,
    bytes: u64,
    /// Since the stage began.
    at: Duration,
}

impl Fan {
    #[must_use]
    pub fn of(sink: Box<dyn Sink>) -> Self {
        let mut fan = Fan::default();
        fan.add(sink);
        fan
    }

    pub fn add(&mut self, sink: Box<dyn Sink>) {
        self.sinks.push(Member { sink, bytes: 0, at: Duration::ZERO });
    }
}

impl Sink for Fan {
    fn show(&mut self, s: &Snapshot) -> Due {
        let mut next = Due { bytes: u64::MAX, after: Duration::MAX };
        for member in &mut self.sinks {
            if s.moment != Moment::Underway || s.done >= member.bytes || s.elapsed >= member.at {
                let due = member.sink.show(s);
                member.bytes = due.bytes;
                member.at = s.elapsed.saturating_add(due.after);
            }
            next.bytes = next.bytes.min(member.bytes);
            next.after = next.after.min(member.at.saturating_sub(s.elapsed));
        }
        next
    }

    fn close(&mut self) {
        for member in &mut self.sinks {
            member.sink.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Keep(Arc<Mutex<Vec<String>>>, char, Due);

    impl Sink for Keep {
        fn show(&mut self, s: &Snapshot) -> Due {
            self.0.lock().unwrap().push(format!("{}{}", self.1, s.done));
            self.2
        }
        fn close(&mut self) {
            self.0.lock().unwrap().push(format!("{}.", self.1));
        }
    }

    #[test]
    fn each_sink_is_called_when_it_is_due() {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let keep = |name, due| Box::new(Keep(seen.clone(), name, due));
        let mut fan = Fan::of(keep('b', Due { bytes: 50, after: Duration::MAX }));
        fan.add(keep('t', Due::after(Duration::from_secs(3))));
        let mut at = |moment, done, seconds| {
            let elapsed = Duration::from_secs(seconds);
            fan.show(&Snapshot { moment, done, elapsed, ..Snapshot::example() })
        };
        assert_eq!(at(Moment::Begin, 0, 0), Due { bytes: 50, after: Duration::from_secs(3) });
        // By whichever comes first; the other sink is not due yet, and keeps its date.
        assert_eq!(at(Moment::Underway, 20, 3), Due { bytes: 50, after: Duration::from_secs(3) });
        assert_eq!(at(Moment::Underway, 60, 4), Due { bytes: 50, after: Duration::from_secs(2) });
        at(Moment::End, 61, 5);
        fan.close();
        assert_eq!(*seen.lock().unwrap(), ["b0", "t0", "t20", "b60", "b61", "t61", "b.", "t."]);
    }
}
