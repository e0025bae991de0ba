//! Progress in the owner's dashboard.

use super::Stage;
use super::sink::{Due, Moment, Sink, Snapshot};
use crate::progress::dashboard::DASHBOARD_INTERVAL;
pub use crate::progress::dashboard::Dashboard as Cloud;

/// The states of the original script: dashboards know these texts.
pub const STARTING: &str = "Starting flashing balenaOS on internal media";
pub const FLASHING: &str = "Flashing balenaOS on internal media";
/// At 100 %: done.
pub const POST_PROVISIONING: &str = "Post-Provisioning";
/// At 100 %: no disk may be flashed.
pub const NO_DEVICE: &str = "Failed to find any block devices.";
/// At 100 %: the configuration names no internal disk.
pub const NOT_SUPPORTED: &str = "Installer is not supported on this device type.";

impl Cloud {
    #[must_use]
    pub fn sink(&self) -> Box<dyn Sink> {
        Box::new(CloudSink(self.clone()))
    }
}

struct CloudSink(Cloud);

impl Sink for CloudSink {
    fn show(&mut self, s: &Snapshot) -> Due {
        match s.stage {
            Stage::Write if s.moment == Moment::Begin => self.0.report(0, STARTING),
            // 100 means that the whole installation has succeeded.
            Stage::Write | Stage::Verify => self.0.report(s.job.percent.unwrap_or(0).min(99), FLASHING),
            _ => {}
        }
        Due::after(DASHBOARD_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Outlook, Progress, meter::Meter};
    use super::*;
    use crate::progress::dashboard::Carrier;
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    type Kept = Arc<Mutex<Vec<(u8, &'static str, Instant)>>>;

    fn kept(interval: Duration, slow: Duration) -> (Cloud, Kept) {
        let kept = Kept::default();
        let keep = kept.clone();
        let carry: Carrier = Box::new(move |percent, text| {
            keep.lock().unwrap().push((percent, text, Instant::now()));
            thread::sleep(slow);
        });
        (Cloud::with(interval, carry), kept)
    }

    #[test]
    fn the_whole_job_is_one_climb() {
        let (cloud, kept) = kept(Duration::ZERO, Duration::ZERO);
        let mut sink = cloud.sink();
        let mut show = |stage, moment, percent| {
            let job = Outlook { percent, ..Outlook::default() };
            sink.show(&Snapshot { stage, moment, job, ..Snapshot::example() });
            cloud.finish(Duration::from_secs(5));
        };
        show(Stage::Check, Moment::Begin, Some(0));
        show(Stage::Check, Moment::End, Some(5));
        show(Stage::Write, Moment::Begin, Some(5));
        show(Stage::Write, Moment::Underway, Some(5));
        show(Stage::Write, Moment::Underway, Some(41));
        show(Stage::Write, Moment::Underway, None);
        show(Stage::Verify, Moment::Begin, Some(70));
        show(Stage::Verify, Moment::Underway, Some(99));
        show(Stage::Verify, Moment::End, Some(100));
        cloud.report(100, POST_PROVISIONING);
        cloud.report(100, POST_PROVISIONING);
        cloud.finish(Duration::from_secs(5));
        let seen: Vec<_> = kept.lock().unwrap().iter().map(|k| (k.0, k.1)).collect();
        assert_eq!(
            seen,
            [
                (0, STARTING),
                (5, FLASHING),
                (41, FLASHING),
                (70, FLASHING),
                (99, FLASHING),
                (100, POST_PROVISIONING)
            ]
        );
    }

    #[test]
    fn the_newest_wins_and_no_caller_waits() {
        let (cloud, kept) = kept(Duration::from_millis(200), Duration::from_millis(50));
        let meter = Meter::new(super::super::fan::Fan::of(cloud.sink()));
        meter.begin(Stage::Write, Some(100));
        for percent in 1..100 {
            cloud.report(percent, FLASHING);
        }
        cloud.finish(Duration::from_secs(5));
        cloud.report(100, POST_PROVISIONING);
        cloud.finish(Duration::from_secs(5));
        let seen = kept.lock().unwrap().clone();
        assert_eq!(seen.last().map(|k| (k.0, k.1)), Some((100, POST_PROVISIONING)));
        assert!(seen.len() <= 10 && seen.is_sorted_by_key(|k| k.0), "{seen:?}");
        assert!(seen.windows(2).all(|w| w[1].2 - w[0].2 >= Duration::from_millis(150)), "{seen:?}");
    }

    #[test]
    fn the_last_one_is_awaited_for_a_bounded_time() {
        let (cloud, _) = kept(Duration::ZERO, Duration::from_secs(1000));
        cloud.report(100, NO_DEVICE);
        let began = Instant::now();
        cloud.finish(Duration::from_millis(100));
        assert!((100..300_000).contains(&began.elapsed().as_millis()));
    }
}
