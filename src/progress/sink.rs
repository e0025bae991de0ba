//! What a meter shows, and to whom.

use std::time::Duration;

use super::Stage;
use super::forecast::Outlook;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Begin,
    Underway,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    pub stage: Stage,
    pub moment: Moment,
    pub done: u64,
    pub total: Option<u64>,
    /// Rounded down; never decreases within a stage; 100 at its end only. `None` while the total is unknown.
    pub percent: Option<u8>,
    /// Bytes a second: a moving average, at the end of the stage its average. `None` while unknown.
    pub rate: Option<u64>,
    /// Seconds, rounded up.
    pub eta: Option<u64>,
    /// Since the stage began.
    pub elapsed: Duration,
    /// Of the whole job, which may have more stages.
    pub job: Outlook,
}

#[cfg(test)]
impl Snapshot {
    /// In the middle of a stage.
    pub(super) fn example() -> Snapshot {
        Snapshot {
            stage: Stage::Write,
            moment: Moment::Underway,
            done: 3 << 29,
            total: Some(2 << 30),
            percent: Some(75),
            rate: Some(85 << 20),
            eta: Some(6),
            elapsed: Duration::from_secs(9),
            job: Outlook { percent: Some(45), eta: Some(3725), eta_is_least: false },
        }
    }
}

/// When a sink is called next: at the earlier of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Bytes done.
    pub bytes: u64,
    pub after: Duration,
}

impl Due {
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Due { bytes: u64::MAX, after: time }
    }
}

/// Shows snapshots. Must not fail and must not block. What the log calls must not log.
pub trait Sink: Send {
    /// Returns when the next snapshot is due.
    fn show(&mut self, snapshot: &Snapshot) -> Due;
    fn close(&mut self) {}
}
