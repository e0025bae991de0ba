//! Percent, rate and time left of a job.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};

use super::fan::Fan;
use super::forecast::{Done, Forecast, Outlook, Work};
use super::rate::Rate;
use super::sink::{Moment, Sink, Snapshot};
use super::{Progress, Stage};

/// A [`Progress`] that shows itself through a [`Sink`].
///
/// `advance` is two atomic operations unless the sink is due; then one thread shows, and no other thread waits for it.
pub struct Meter<S> {
    origin: Instant,
    /// Bytes of the stage that are done, and the zeroes among them.
    done: AtomicU64,
    zeroes: AtomicU64,
    /// What the zeroes took, in microseconds.
    zero_time: AtomicU64,
    due_bytes: AtomicU64,
    due_ms: AtomicU64,
    state: Mutex<MeterState<S>>,
}

struct MeterState<S> {
    sink: S,
    running: Option<Running>,
    forecast: Forecast,
    closed: bool,
}

impl<S: Sink> Meter<S> {
    pub fn new(sink: S) -> Self {
        Meter {
            origin: Instant::now(),
            done: AtomicU64::new(0),
            zeroes: AtomicU64::new(0),
            zero_time: AtomicU64::new(0),
            due_bytes: AtomicU64::new(u64::MAX),
            due_ms: AtomicU64::new(u64::MAX),
            state: Mutex::new(MeterState {
                sink,
                running: None,
                forecast: Forecast::default(),
                closed: false,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, MeterState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_due(&self, done: u64) -> bool {
        done >= self.due_bytes.load(Ordering::Relaxed)
            || millis(self.origin.elapsed()) >= self.due_ms.load(Ordering::Relaxed)
    }

    fn show(&self, state: &mut MeterState<S>, moment: Moment) {
        let MeterState { sink, running: Some(running), forecast, closed: false } = state else { return };
        let now = self.origin.elapsed();
        let done = self.done();
        let job = match moment {
            Moment::End => forecast.end(done, now),
            Moment::Begin | Moment::Underway => forecast.see(done, now),
        };
        let due = sink.show(&Snapshot { job, ..running.snapshot(moment, done.data + done.zeroes, now) });
        self.due_bytes.store(due.bytes, Ordering::Relaxed);
        self.due_ms.store(millis(self.origin.elapsed().saturating_add(due.after)), Ordering::Relaxed);
    }

    fn done(&self) -> Done {
        let zeroes = self.zeroes.load(Ordering::Relaxed);
        let zero_time = Duration::from_micros(self.zero_time.load(Ordering::Relaxed));
        Done { data: self.done.load(Ordering::Relaxed).saturating_sub(zeroes), zeroes, zero_time }
    }

    /// Shows what is due though nothing advances: a disk that hangs, a long flush.
    pub(super) fn tick(&self) {
        if self.is_due(0)
            && let Ok(mut state) = self.state.try_lock()
            && self.is_due(0)
        {
            self.show(&mut state, Moment::Underway);
        }
    }

    fn rest(&self) {
        self.due_bytes.store(u64::MAX, Ordering::Relaxed);
        self.due_ms.store(u64::MAX, Ordering::Relaxed);
    }
}

impl Meter<Fan> {
    pub fn also(&self, sink: Box<dyn Sink>) {
        self.lock().sink.add(sink);
        self.due_bytes.store(0, Ordering::Relaxed);
    }
}

impl<S: Sink> Progress for Meter<S> {
    fn plan(&self, stages: &[Work]) {
        self.lock().forecast.plan(stages);
    }

    fn measured(&self, stage: Stage, bytes: u64, time: Duration) {
        self.lock().forecast.measured(stage, bytes, time);
    }

    fn begin(&self, stage: Stage, total: Option<u64>) {
        let mut state = self.lock();
        for number in [&self.done, &self.zeroes, &self.zero_time] {
            number.store(0, Ordering::Relaxed);
        }
        let now = self.origin.elapsed();
        state.running = Some(Running::new(stage, total, now));
        state.forecast.begin(stage, total, now);
        self.show(&mut state, Moment::Begin);
    }

    fn expect(&self, total: Option<u64>) {
        let mut state = self.lock();
        let MeterState { running: Some(running), forecast, .. } = &mut *state else { return };
        running.expect(total);
        forecast.expect(running.total);
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if !self.is_due(done) {
            return;
        }
        // Another thread that holds the lock shows newer numbers.
        if let Ok(mut state) = self.state.try_lock()
            && self.is_due(done)
        {
            self.show(&mut state, Moment::Underway);
        }
    }

    fn advance_zeroes(&self, bytes: u64, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.zero_time.fetch_add(took, Ordering::Relaxed);
        self.zeroes.fetch_add(bytes, Ordering::Relaxed);
        self.advance(bytes);
    }

    fn finish(&self) {
        let mut state = self.lock();
        self.show(&mut state, Moment::End);
        state.running = None;
        self.rest();
    }

    fn close(&self) {
        let mut state = self.lock();
        if !state.closed {
            state.closed = true;
            state.sink.close();
        }
        self.rest();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

struct Running {
    stage: Stage,
    total: Option<u64>,
    /// The first total that was known.
    announced: Option<u64>,
    has_grown: bool,
    started: Duration,
    percent: u8,
    rate: Rate,
}

impl Running {
    fn new(stage: Stage, total: Option<u64>, started: Duration) -> Self {
        Running {
            stage,
            total,
            announced: total,
            has_grown: false,
            started,
            percent: 0,
            rate: Rate::new(started, RATE_MEMORY),
        }
    }

    /// A size that grows is not the size of the work: from then on it is unknown, and so are percent and time left.
    fn expect(&mut self, total: Option<u64>) {
        self.announced = self.announced.or(total);
        self.has_grown |= total > self.announced;
        self.total = total.filter(|_| !self.has_grown);
    }

    /// Without what is of the whole job.
    fn snapshot(&mut self, moment: Moment, done: u64, now: Duration) -> Snapshot {
        let elapsed = now.saturating_sub(self.started);
        self.rate.sample(done, now);
        let (percent, rate, eta) = match moment {
            Moment::Begin => (self.total.map(|_| 0), None, None),
            Moment::Underway => {
                let rate = self.rate.get().and_then(|rate| per_second(rate, Duration::from_secs(1)));
                (self.total.map(|t| self.climb(done, t)), rate, eta(self.total, done, rate))
            }
            Moment::End => (Some(100), per_second(done as f64, elapsed), Some(0)),
        };
        let job = Outlook::default();
        Snapshot { stage: self.stage, moment, done, total: self.total, percent, rate, eta, elapsed, job }
    }

    /// Percent of `total`, at most 99: 100 means success.
    fn climb(&mut self, done: u64, total: u64) -> u8 {
        let exact = u128::from(done) * 100 / u128::from(total.max(1));
        self.percent = self.percent.max(u8::try_from(exact.min(99)).unwrap_or(99));
        self.percent
    }
}

fn eta(total: Option<u64>, done: u64, rate: Option<u64>) -> Option<u64> {
    match (total, rate) {
        (Some(total), Some(rate @ 1..)) => Some(total.saturating_sub(done).div_ceil(rate)),
        _ => None,
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates; a rate is shown, never computed with
fn per_second(bytes: f64, time: Duration) -> Option<u64> {
    (!time.is_zero()).then(|| (bytes / time.as_secs_f64()) as u64)
}

/// Of the rate that is shown: slow enough to read, fast enough to see the cache of a stick run full.
const RATE_MEMORY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::sink::Due;
    use super::*;
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;

    /// Keeps what it is shown.
    #[derive(Clone)]
    struct Keep(Arc<Mutex<Vec<Snapshot>>>, Due);

    impl Keep {
        fn new(due: Due) -> Self {
            Keep(Arc::default(), due)
        }
        fn seen(&self) -> Vec<Snapshot> {
            self.0.lock().unwrap().clone()
        }
    }

    impl Sink for Keep {
        fn show(&mut self, snapshot: &Snapshot) -> Due {
            self.0.lock().unwrap().push(*snapshot);
            self.1
        }
    }

    #[test]
    fn percent_only_climbs_and_100_is_success() {
        let keep = Keep::new(Due { bytes: 0, after: Duration::ZERO });
        let meter = Meter::new(keep.clone());
        meter.begin(Stage::Write, Some(10 * MIB));
        std::thread::scope(|s| {
            for _ in 0..4 {
                // 12 MiB in all: more than announced.
                s.spawn(|| (0..3 * 256).for_each(|_| meter.advance(MIB / 256)));
            }
        });
        let before = keep.seen();
        assert!(before.iter().all(|s| s.percent.is_some_and(|p| p < 100)), "{before:?}");
        meter.finish();
        let seen = keep.seen();
        assert!(seen.is_sorted_by_key(|s| s.percent), "{seen:?}");
        assert_eq!(seen[0].moment, Moment::Begin);
        let last = seen.last().unwrap();
        assert_eq!((last.moment, last.percent, last.done), (Moment::End, Some(100), 12 * MIB));
        assert_eq!(seen.iter().filter(|s| s.percent == Some(100)).count(), 1);
    }

    #[test]
    fn unknown_total_has_no_percent_until_the_end() {
        let keep = Keep::new(Due { bytes: 0, after: Duration::ZERO });
        let meter = Meter::new(keep.clone());
        meter.begin(Stage::Check, None);
        meter.advance(5);
        meter.finish();
        let percents: Vec<_> = keep.seen().iter().map(|s| s.percent).collect();
        assert_eq!(percents, [None, None, Some(100)]);
        assert_eq!(keep.seen()[1].eta, None);
    }

    #[test]
    fn sink_is_called_when_due_and_not_sooner() {
        let keep = Keep::new(Due::after(Duration::from_secs(3600)));
        let meter = Meter::new(keep.clone());
        meter.advance(1);
        meter.begin(Stage::Write, Some(MIB));
        (0..1000).for_each(|_| meter.advance(1));
        assert_eq!(keep.seen().len(), 1);
        meter.finish();
        meter.advance(1);
        assert_eq!(keep.seen().len(), 2);

        let keep = Keep::new(Due { bytes: 500, after: Duration::MAX });
        let meter = Meter::new(keep.clone());
        meter.begin(Stage::Write, Some(MIB));
        (0..499).for_each(|_| meter.advance(1));
        assert_eq!(keep.seen().len(), 1);
        meter.advance(1);
        assert_eq!(keep.seen()[1].done, 500);
    }

    #[test]
    fn a_second_stage_starts_over_and_nothing_follows_the_close() {
        let keep = Keep::new(Due { bytes: 0, after: Duration::ZERO });
        let meter = Meter::new(keep.clone());
        meter.begin(Stage::Write, Some(4));
        meter.advance(4);
        meter.finish();
        meter.begin(Stage::Verify, Some(4));
        assert_eq!(
            keep.seen().last().map(|s| (s.stage, s.done, s.percent)),
            Some((Stage::Verify, 0, Some(0)))
        );
        let shown = keep.seen().len();
        meter.close();
        meter.advance(4);
        meter.finish();
        assert_eq!(keep.seen().len(), shown);
    }

    #[test]
    fn rate_follows_a_change_of_speed_and_gives_the_time_left() {
        let at = |s: u64| Duration::from_millis(s * 250);
        let mut running = Running::new(Stage::Write, Some(4000 * MIB), at(0));
        let mut done = 0;
        for i in 1..=40 {
            done += 25 * MIB;
            running.snapshot(Moment::Underway, done, at(i));
        }
        let fast = running.snapshot(Moment::Underway, done, at(40));
        assert_eq!(fast.rate, Some(100 * MIB));
        assert_eq!((fast.percent, fast.eta), (Some(25), Some(30)));
        for i in 41..=60 {
            done += MIB;
            running.snapshot(Moment::Underway, done, at(i));
        }
        // Five seconds at 4 MiB/s: at most 4 + 96/e.
        let rate = running.rate.get().unwrap() / MIB as f64;
        assert!((25.0..=40.0).contains(&rate), "{rate}");
        let end = running.snapshot(Moment::End, done, at(60));
        assert_eq!((end.rate, end.eta), (Some(1020 * MIB / 15), Some(0)));
    }

    #[test]
    fn no_bytes_and_no_time_are_no_division_by_zero() {
        let mut running = Running::new(Stage::Check, Some(0), Duration::ZERO);
        let s = running.snapshot(Moment::Underway, 0, Duration::ZERO);
        assert_eq!((s.percent, s.rate, s.eta), (Some(0), None, None));
        let s = running.snapshot(Moment::Underway, 0, Duration::from_secs(1));
        assert_eq!((s.rate, s.eta), (Some(0), None));
        assert_eq!(running.snapshot(Moment::End, 0, Duration::ZERO).rate, None);
    }
}
