//! Progress in one line of text that replaces the last one: what `systemctl status` shows of the service.

use std::time::Duration;

use super::lines;
use super::meter::{Due, Sink, Snapshot};

const INTERVAL: Duration = Duration::from_secs(1);

/// Tells the present state in words.
pub struct Status<F> {
    tell: F,
}

impl<F: FnMut(&str) + Send> Status<F> {
    /// Hands each state to `tell`, at most one a second within a stage. `tell` must not wait.
    pub fn new(tell: F) -> Self {
        Status { tell }
    }
}

impl<F: FnMut(&str) + Send> Sink for Status<F> {
    fn show(&mut self, snapshot: &Snapshot) -> Due {
        (self.tell)(&lines::line(snapshot));
        Due::after(INTERVAL)
    }
}
