//! How far a job of several stages has come, and how long it still takes: by rates that are measured, not by bytes alone.
//!
//! Stages cost differently: a disk reads faster than it writes, and most disks make zeroes without a write. A stage that has not begun is
//! estimated by a sample of its work, which was timed before; without one, by the stage before it.

use std::time::Duration;

use super::Stage;
use super::rate::Rate;

/// What a stage has to do, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub stage: Stage,
    /// `None` where it is known only at the end.
    pub total: Option<u64>,
    /// Zeroes among them, as far as known, where these do not cost what data costs.
    pub zeroes: u64,
}

/// Bytes that are done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) data: u64,
    pub(super) zeroes: u64,
    /// What the zeroes took.
    pub(super) zero_time: Duration,
}

/// Percent and time left of the whole job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outlook {
    /// Rounded down; never decreases; 100 at the end of the last stage only. `None` while unknown.
    pub percent: Option<u8>,
    /// Seconds, rounded up. `None` while unknown.
    pub eta: Option<u64>,
    /// A stage that has not begun cannot be estimated: nothing was written to the disk yet. It takes `eta` or longer.
    pub eta_is_least: bool,
}

/// Time of a stage before its own rate counts: caches take the first writes.
const WARM_UP: Duration = Duration::from_secs(1);

/// Of the rate of a stage: a long stage is seldom disturbed for good, but a stick whose cache is full must be followed.
const RATE_MEMORY: Duration = Duration::from_secs(30);

/// When a disk has stood still for so long, the time left is unknown until it goes on. That time is not of its rate.
const STANDSTILL: Duration = Duration::from_secs(10);

/// Cost of a byte to verify, in bytes to write, where nothing was measured: flash memory reads two to ten times as fast as it
/// writes, and each byte is digested.
const UNMEASURED_VERIFY: f64 = 0.5;

/// The same of a zero to write: next to nothing on most disks. That a disk cannot do it is known after the first zeroes.
const UNMEASURED_ZERO: f64 = 0.01;

/// What write and verification take, for the percentage while the image is checked: nothing was measured yet.
const LIKELY_TIMES_THE_CHECK: f64 = 5.0;

#[derive(Debug, Default)]
pub(super) struct Forecast {
    legs: Vec<Leg>,
    /// How many of them have begun.
    begun: usize,
    /// What is done of the whole job, from 0 to 1, and when that was so.
    share: f64,
    share_at: Duration,
    percent: u8,
}

/// A stage of the job.
#[derive(Debug)]
struct Leg {
    work: Work,
    began: Duration,
    done: Done,
    /// When something was done last.
    moved: Duration,
    /// Of data, measured while the stage runs.
    rate: Rate,
    /// Bytes a second, from a sample before it.
    expected: Option<f64>,
}

/// Seconds.
#[derive(Debug, Clone, Copy)]
struct Left {
    time: f64,
    /// More than `time` while that is the least.
    likely: f64,
    is_least: bool,
}

impl Forecast {
    /// The stages that have not begun, in their order. One that does not begin is left out.
    pub(super) fn plan(&mut self, stages: &[Work]) {
        let old = self.legs.split_off(self.begun);
        let expected = |stage| old.iter().find(|leg| leg.work.stage == stage).and_then(|leg| leg.expected);
        self.legs.extend(stages.iter().map(|work| Leg { expected: expected(work.stage), ..Leg::new(*work) }));
    }

    /// A sample of the work of a planned stage took this time.
    pub(super) fn measured(&mut self, stage: Stage, bytes: u64, time: Duration) {
        if let Some(leg) = self.legs.iter_mut().skip(self.begun).find(|leg| leg.work.stage == stage)
            && bytes > 0
            && !time.is_zero()
        {
            leg.expected = Some(bytes as f64 / time.as_secs_f64());
        }
    }

    /// A stage that was not planned is a job of its own.
    pub(super) fn begin(&mut self, stage: Stage, total: Option<u64>, now: Duration) {
        match self.legs.iter().skip(self.begun).position(|leg| leg.work.stage == stage) {
            Some(left_out) => drop(self.legs.drain(self.begun..self.begun + left_out)),
            None => {
                *self =
                    Forecast { legs: vec![Leg::new(Work { stage, total, zeroes: 0 })], ..Forecast::default() }
            }
        }
        if self.begun == 0 {
            self.share_at = now;
        }
        if let Some(leg) = self.legs.get_mut(self.begun) {
            leg.work.total = total.or(leg.work.total);
            (leg.began, leg.moved, leg.rate) = (now, now, Rate::new(now, RATE_MEMORY));
        }
        self.begun += 1;
    }

    /// The total of the current stage.
    pub(super) fn expect(&mut self, total: Option<u64>) {
        if let Some(leg) = self.current_mut() {
            leg.work.total = total;
        }
    }

    pub(super) fn see(&mut self, done: Done, now: Duration) -> Outlook {
        if let Some(leg) = self.current_mut() {
            leg.sample(done, now);
        }
        let left = self.left(now);
        if let Some(Left { likely, .. }) = left {
            // The rest shrinks to nothing in the time that is left, whatever was estimated before: the share never falls.
            let since = now.saturating_sub(self.share_at).as_secs_f64();
            self.share += (1.0 - self.share) * since / (since + likely).max(f64::MIN_POSITIVE);
            self.share_at = now;
        }
        let percent = self.percent();
        Outlook {
            percent,
            eta: left.map(|l| seconds(l.time)),
            eta_is_least: left.is_some_and(|l| l.is_least),
        }
    }

    /// The current stage has ended.
    pub(super) fn end(&mut self, done: Done, now: Duration) -> Outlook {
        if self.begun >= self.legs.len() {
            return Outlook { percent: Some(100), eta: Some(0), eta_is_least: false };
        }
        if let Some(leg) = self.current_mut() {
            // It may end before its total, or after it.
            leg.work.total = Some(done.data + done.zeroes);
        }
        self.see(done, now)
    }

    fn current_mut(&mut self) -> Option<&mut Leg> {
        self.legs.get_mut(self.begun.checked_sub(1)?)
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates
    fn percent(&mut self) -> Option<u8> {
        let exact = match self.legs.as_slice() {
            // Bytes are all that a single stage has.
            [leg] => {
                let done = u128::from(leg.done.data + leg.done.zeroes) * 100;
                u8::try_from(done / u128::from(leg.work.total?.max(1))).unwrap_or(99)
            }
            legs => {
                let mut rest = legs.iter().skip(self.begun.saturating_sub(1));
                let current = rest.next()?;
                // What is written is known when the image was checked.
                let is_known = current.work.stage == Stage::Check || rest.all(|leg| leg.work.total.is_some());
                current.work.total.filter(|_| is_known)?;
                (self.share * 100.0) as u8
            }
        };
        self.percent = self.percent.max(exact.min(99));
        Some(self.percent)
    }

    fn left(&self, now: Duration) -> Option<Left> {
        let current = self.legs.get(self.begun.checked_sub(1)?)?;
        let rate = current.rate_at(now)?;
        let mut time = current.left(rate)?;
        let mut is_least = false;
        let whole = now.saturating_sub(current.began).as_secs_f64() + time;
        for leg in self.legs.iter().skip(self.begun) {
            let sampled = leg.expected.zip(leg.work.total).map(|(rate, bytes)| bytes as f64 / rate);
            time += match (current.work.stage, leg.work.stage) {
                // The image is read and decoded again while it is written.
                (Stage::Check, Stage::Write) => whole,
                (Stage::Check, _) => sampled.unwrap_or(0.0),
                _ => sampled.or_else(|| Some(leg.work.total? as f64 * UNMEASURED_VERIFY / rate))?,
            };
            is_least |= current.work.stage == Stage::Check;
        }
        // Most disks take some times longer to write and to read the image than the processor takes to unpack it.
        let likely = if is_least { time.max(whole * LIKELY_TIMES_THE_CHECK) } else { time };
        Some(Left { time, likely, is_least })
    }
}

impl Leg {
    fn new(work: Work) -> Leg {
        Leg {
            work,
            began: Duration::ZERO,
            done: Done::default(),
            moved: Duration::ZERO,
            rate: Rate::new(Duration::ZERO, RATE_MEMORY),
            expected: None,
        }
    }

    fn sample(&mut self, done: Done, now: Duration) {
        let (has_data, has_zeroes) = (done.data > self.done.data, done.zeroes > self.done.zeroes);
        self.done = done;
        let has_stood = now.saturating_sub(self.moved) >= STANDSTILL;
        if has_data && !has_stood {
            self.rate.sample(done.data, now);
        } else if has_data || has_zeroes {
            self.rate.skip(done.data, now);
        }
        if has_data || has_zeroes {
            self.moved = now;
        }
    }

    /// Bytes of data a second.
    fn rate_at(&self, now: Duration) -> Option<f64> {
        if now.saturating_sub(self.moved) >= STANDSTILL {
            return None;
        }
        let is_warm = now.saturating_sub(self.began) >= WARM_UP;
        self.rate.get().filter(|_| is_warm).or(self.expected).filter(|rate| *rate > 0.0)
    }

    /// Seconds, at `rate` bytes of data a second.
    fn left(&self, rate: f64) -> Option<f64> {
        let all = self.work.total?.saturating_sub(self.done.data + self.done.zeroes);
        let zeroes = self.work.zeroes.saturating_sub(self.done.zeroes).min(all);
        let zero_cost = match self.done {
            Done { zeroes: 0, .. } => UNMEASURED_ZERO / rate,
            Done { zeroes, zero_time, .. } => zero_time.as_secs_f64() / zeroes as f64,
        };
        // Zeroes that are written beside data share the disk with it; they are data at worst.
        Some((all - zeroes) as f64 / rate + zeroes as f64 * zero_cost.min(1.0 / rate))
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates
fn seconds(time: f64) -> u64 {
    time.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// A machine without a clock: a flash whose rates are known, looked at four times a second.
    struct Flash {
        forecast: Forecast,
        now: f64,
        /// Time, and what was foreseen then.
        seen: Vec<(f64, Outlook)>,
    }

    impl Flash {
        fn new(stages: &[Work]) -> Flash {
            let mut forecast = Forecast::default();
            forecast.plan(stages);
            Flash { forecast, now: 0.0, seen: Vec::new() }
        }

        fn at(&self) -> Duration {
            Duration::from_secs_f64(self.now)
        }

        /// The stage, in parts of so many bytes (data or zeroes) at a rate each.
        fn stage(&mut self, stage: Stage, total: Option<u64>, parts: &[(u64, u64, f64)]) {
            self.forecast.begin(stage, total, self.at());
            let mut done = Done::default();
            for &(data, zeroes, rate) in parts {
                let steps = seconds((data + zeroes) as f64 / rate * 4.0).max(1);
                let before = done;
                for step in 1..=steps {
                    self.now += (data + zeroes) as f64 / rate / steps as f64;
                    let part = |bytes: u64| bytes * step / steps;
                    let zero_time = before.zero_time + Duration::from_secs_f64(part(zeroes) as f64 / rate);
                    done = Done {
                        data: before.data + part(data),
                        zeroes: before.zeroes + part(zeroes),
                        zero_time,
                    };
                    let outlook = self.forecast.see(done, self.at());
                    self.seen.push((self.now, outlook));
                }
            }
            let outlook = self.forecast.end(done, self.at());
            self.seen.push((self.now, outlook));
        }

        /// The largest error of the time left, in percent of the whole time, from a tenth of that on.
        fn error(&self) -> f64 {
            let whole = self.now;
            let late = self.seen.iter().filter(|(at, outlook)| *at >= whole / 10.0 && !outlook.eta_is_least);
            let errors = late.map(|(at, outlook)| {
                let eta = outlook.eta.unwrap_or_else(|| panic!("nothing is foreseen at {at} of {whole}"));
                (at + eta as f64 - whole).abs() * 100.0 / whole
            });
            errors.fold(0.0, f64::max)
        }

        fn assert_climbs_to_the_end(&self) {
            let percents: Vec<u8> = self.seen.iter().filter_map(|(_, outlook)| outlook.percent).collect();
            assert!(percents.is_sorted(), "{percents:?}");
            assert_eq!(percents.last(), Some(&100));
            assert_eq!(percents.iter().filter(|percent| **percent == 100).count(), 1);
            let (at, _) = *self.seen.iter().find(|(_, outlook)| outlook.percent == Some(99)).expect("99 %");
            assert!(self.now - at <= self.now / 30.0 + 1.0, "99 % from {at} to {}", self.now);
        }
    }

    fn work(stage: Stage, total: u64, zeroes: u64) -> Work {
        Work { stage, total: Some(total), zeroes }
    }

    /// 3 GB of which 1 GB is data, onto a disk that writes 20 MB/s and reads 60.
    #[test]
    fn a_constant_rate_is_foreseen() {
        let size = 3000 * MB;
        let mut flash = Flash::new(&[work(Stage::Write, size, 2000 * MB), work(Stage::Verify, size, 0)]);
        flash.forecast.measured(Stage::Verify, 16 * MB, Duration::from_millis(270));
        flash.stage(Stage::Write, Some(size), &[(1000 * MB, 0, 20e6), (0, 2000 * MB, 4e9)]);
        flash.stage(Stage::Verify, Some(size), &[(size, 0, 60e6)]);
        assert!(flash.error() < 5.0, "{} %", flash.error());
        flash.assert_climbs_to_the_end();
    }

    #[test]
    fn a_disk_that_cannot_zero_is_known_after_the_first_zeroes() {
        let size = 3000 * MB;
        let mut flash = Flash::new(&[work(Stage::Write, size, 2000 * MB), work(Stage::Verify, size, 0)]);
        flash.forecast.measured(Stage::Verify, 16 * MB, Duration::from_millis(270));
        let parts = [(0, 10 * MB, 20e6), (1000 * MB, 0, 20e6), (0, 1990 * MB, 20e6)];
        flash.stage(Stage::Write, Some(size), &parts);
        flash.stage(Stage::Verify, Some(size), &[(size, 0, 60e6)]);
        assert!(flash.error() < 5.0, "{} %", flash.error());
        flash.assert_climbs_to_the_end();
    }

    /// A card that pauses: the time left does not triple, and while it stands still for long there is none.
    #[test]
    fn a_pause_is_not_the_rate() {
        for pause in [5.0, 20.0] {
            let size = 1000 * MB;
            let mut flash = Flash::new(&[work(Stage::Write, size, 0), work(Stage::Verify, size, 0)]);
            flash.forecast.measured(Stage::Verify, 16 * MB, Duration::from_millis(270));
            let parts = [(120 * MB, 0, 20e6), (1, 0, 1.0 / pause), (880 * MB - 1, 0, 20e6)];
            flash.stage(Stage::Write, Some(size), &parts);
            flash.stage(Stage::Verify, Some(size), &[(size, 0, 60e6)]);
            let etas: Vec<u64> = flash.seen.iter().filter_map(|(_, outlook)| outlook.eta).collect();
            assert!(etas.iter().all(|eta| *eta < 3 * etas[0]), "{pause}: {etas:?}");
            let stands = flash.seen.iter().filter(|(at, _)| *at > 17.0 && *at < 5.9 + pause);
            assert!(stands.clone().all(|(_, outlook)| outlook.eta.is_none()), "{pause}");
            assert_eq!(stands.count() > 0, pause > 15.0);
        }
    }

    /// A stick whose cache is full.
    #[test]
    fn a_disk_that_slows_down_by_half_is_followed() {
        for fast in [200, 500, 800] {
            let size = 1000 * MB;
            let mut flash = Flash::new(&[work(Stage::Write, size, 0), work(Stage::Verify, size, 0)]);
            flash.forecast.measured(Stage::Verify, 16 * MB, Duration::from_millis(270));
            flash.stage(Stage::Write, Some(size), &[(fast * MB, 0, 20e6), ((1000 - fast) * MB, 0, 10e6)]);
            flash.stage(Stage::Verify, Some(size), &[(size, 0, 60e6)]);
            assert!(flash.error() < 35.0, "{fast}: {} %", flash.error());
            flash.assert_climbs_to_the_end();
        }
    }

    /// What the disk writes cannot be known while the image is checked. That it takes at least so long is never wrong.
    #[test]
    fn the_check_foresees_the_least() {
        let mut flash = Flash::new(&[Stage::Check, Stage::Write, Stage::Verify].map(|stage| Work {
            stage,
            total: None,
            zeroes: 0,
        }));
        flash.stage(Stage::Check, Some(300 * MB), &[(250 * MB, 0, 30e6), (0, 0, 1.0), (50 * MB, 0, 30e6)]);
        let checked = flash.seen.len();
        let size = 1000 * MB;
        flash.forecast.plan(&[work(Stage::Write, size, 0), work(Stage::Verify, size, 0)]);
        flash.forecast.measured(Stage::Verify, 16 * MB, Duration::from_millis(270));
        flash.stage(Stage::Write, Some(size), &[(size, 0, 20e6)]);
        flash.stage(Stage::Verify, Some(size), &[(size, 0, 60e6)]);
        let (check, rest) = flash.seen.split_at(checked);
        assert!(check.iter().all(|(_, outlook)| outlook.eta.is_none() || outlook.eta_is_least));
        assert!(check.iter().filter_map(|(at, o)| Some(at + o.eta? as f64)).all(|end| end <= flash.now));
        assert!(check.iter().any(|(_, outlook)| outlook.eta.is_some()));
        assert!(rest.iter().all(|(_, outlook)| !outlook.eta_is_least));
        // A sixth of the bar, whatever the disk is like.
        let ended = check.last().and_then(|(_, outlook)| outlook.percent);
        assert!(ended.is_some_and(|percent| (14..=18).contains(&percent)), "{ended:?}");
        flash.assert_climbs_to_the_end();
    }

    /// An empty partition in an image that is unpacked: few stored bytes, and long work.
    #[test]
    fn zeroes_that_are_unpacked_do_not_stretch_the_time_left() {
        let mut flash = Flash::new(&[]);
        let total = 100 * MB;
        let empty = (0, 10_000, 1e3);
        let parts = [empty, (20 * MB, 0, 5e6), empty, (40 * MB, 0, 5e6), empty, (39 * MB + 970_000, 0, 5e6)];
        flash.stage(Stage::Check, Some(total), &parts);
        let ends = flash.seen.iter().filter_map(|(at, outlook)| Some(at + outlook.eta? as f64));
        let ends: Vec<f64> = ends.map(|end| end / flash.now).collect();
        assert!(ends.len() > 100 && ends.iter().all(|end| (0.5..1.1).contains(end)), "{ends:?}");
    }

    #[test]
    fn a_stage_of_unknown_size_has_neither_percent_nor_time() {
        let unknown = Work { stage: Stage::Write, total: None, zeroes: 0 };
        let mut flash = Flash::new(&[unknown, Work { stage: Stage::Verify, ..unknown }]);
        flash.stage(Stage::Write, None, &[(500 * MB, 0, 20e6)]);
        let write = std::mem::take(&mut flash.seen);
        let (ended, underway) = write.split_last().expect("it was seen");
        assert!(underway.iter().all(|(_, outlook)| *outlook == Outlook::default()), "{underway:?}");
        assert!(ended.1.percent < Some(100), "{ended:?}");
        flash.stage(Stage::Verify, Some(500 * MB), &[(500 * MB, 0, 60e6)]);
        assert!(
            flash
                .seen
                .iter()
                .any(|(_, outlook)| outlook.percent.is_some_and(|p| p > 50) && outlook.eta.is_some())
        );
    }

    #[test]
    fn a_stage_that_was_not_planned_is_a_job_of_its_own() {
        let mut flash = Flash::new(&[]);
        flash.stage(Stage::Pull, Some(10 * MB), &[(5 * MB, 0, 1e6)]);
        assert!(flash.seen.iter().any(|(_, outlook)| outlook.percent == Some(50)));
        flash.stage(Stage::Unpack, Some(10 * MB), &[(10 * MB, 0, 1e6)]);
        assert_eq!(flash.seen.iter().filter(|(_, outlook)| outlook.percent == Some(100)).count(), 2);
    }
}
