use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Result;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepTime {
    pub step: &'static str,
    pub at: f64,
    pub seconds: f64,
}

#[derive(Debug)]
pub(super) struct Timeline {
    began: Instant,
    steps: Vec<StepTime>,
}

impl Timeline {
    pub(super) fn start() -> Self {
        Timeline { began: Instant::now(), steps: Vec::new() }
    }

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

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}
