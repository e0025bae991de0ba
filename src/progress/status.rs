//! Progress in one line that replaces the last one: the service's status in `systemctl status`.

use std::time::Duration;

use super::lines;
use super::sink::{Due, Sink, Snapshot};

const STATUS_INTERVAL: Duration = Duration::from_secs(1);

pub struct Status<F> {
    report: F,
}

impl<F: FnMut(&str) + Send> Status<F> {
    /// `report` gets each state, at most one a second within a stage. It must not block.
    pub fn new(report: F) -> Self {
        Status { report }
    }
}

impl<F: FnMut(&str) + Send> Sink for Status<F> {
    fn show(&mut self, snapshot: &Snapshot) -> Due {
        (self.report)(&lines::line(snapshot, usize::MAX));
        Due::after(STATUS_INTERVAL)
    }
}
