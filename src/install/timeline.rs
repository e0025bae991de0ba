//! When which step began and how long it took: for the log, and for the receipt.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Result;

/// One step that is over.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepTime {
    /// What was done.
    pub step: &'static str,
    /// When it began, in seconds after the start of the run.
    pub at: f64,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// The clock of a run.
#[derive(Debug)]
pub(super) struct Timeline {
    began: Instant,
    steps: Vec<StepTime>,
}

impl Timeline {
    pub(super) fn start() -> Self {
        Timeline { began: Instant::now(), steps: Vec::new() }
    }

    /// Does a step, and logs how long it took.
    pub(super) fn step<T>(&mut self, step: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let at = self.began.elapsed();
        tracing::debug!("{step}: begins");
        let result = work();
        let time = StepTime { step, at: seconds(at), seconds: seconds(self.began.elapsed() - at) };
        let outcome = if result.is_ok() { "" } else { ", failed" };
        tracing::info!("[{:8.3} s] {step}: {:.3} s{outcome}", time.at, time.seconds);
        self.steps.push(time);
        result
    }

    pub(super) fn so_far(&self) -> Vec<StepTime> {
        self.steps.clone()
    }
}

/// To the millisecond.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}
