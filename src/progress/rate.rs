//! A moving average of bytes a second.

use std::time::Duration;

#[derive(Debug)]
pub(super) struct Rate {
    average: Option<f64>,
    began: Duration,
    /// At the last sample.
    at: Duration,
    done: u64,
    longest_memory: Duration,
}

impl Rate {
    /// Closer samples measure buffers, not the medium.
    const SHORTEST_SPAN: Duration = Duration::from_millis(100);

    /// Begins now. After half of the time since then, at most after `longest_memory`, a change of speed has two thirds of its weight.
    pub(super) fn new(now: Duration, longest_memory: Duration) -> Self {
        Rate { average: None, began: now, at: now, done: 0, longest_memory }
    }

    pub(super) fn sample(&mut self, done: u64, now: Duration) {
        let span = now.saturating_sub(self.at);
        if span < Self::SHORTEST_SPAN {
            return;
        }
        let recent = done.saturating_sub(self.done) as f64 / span.as_secs_f64();
        let elapsed = now.saturating_sub(self.began);
        // At first about all samples weigh the same: one may be of a cache, or of a disk that pauses.
        let memory = (elapsed / 2).min(self.longest_memory);
        let weight = 1.0 - (-span.as_secs_f64() / memory.as_secs_f64()).exp();
        let weight = weight.max(span.as_secs_f64() / elapsed.as_secs_f64());
        self.average = Some(self.average.map_or(recent, |a| a + weight * (recent - a)));
        self.skip(done, now);
    }

    /// What was done since the last sample, and its time, are not of the rate.
    pub(super) fn skip(&mut self, done: u64, now: Duration) {
        (self.at, self.done) = (now, done);
    }

    pub(super) fn get(&self) -> Option<f64> {
        self.average
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_weighs_no_more_than_others() {
        let mut rate = Rate::new(Duration::ZERO, Duration::from_secs(30));
        let at = |quarters: u64| Duration::from_millis(quarters * 250);
        // A quarter of a second in which nothing comes, then 100 bytes in each.
        rate.sample(0, at(1));
        (2..=8).for_each(|i| rate.sample((i - 1) * 100, at(i)));
        assert!(rate.get().is_some_and(|rate| (340.0..=400.0).contains(&rate)), "{rate:?}");
    }
}
