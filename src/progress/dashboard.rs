//! The owner's dashboard, reached by the program `resin-device-progress`.
//!
//! It talks to a server, so nothing may depend on it: it runs beside the work, one call at a time, with the newest state only, and
//! its result is ignored.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::paths::Paths;
use crate::sys::command::{Command, End, Said};

const DASHBOARD_PROGRAM: &str = "/usr/bin/resin-device-progress";

pub(crate) const DASHBOARD_INTERVAL: Duration = Duration::from_secs(3);
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
/// Percent from one line of the log to the next, for devices without a fleet.
const LOG_STEP_PERCENT: u8 = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DashboardState {
    percent: u8,
    text: &'static str,
}

pub(crate) type Carrier = Box<dyn FnMut(u8, &'static str) + Send>;

/// Clones share one reporter.
#[derive(Clone)]
pub struct Dashboard {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// The newest state that was not sent.
    next: Option<DashboardState>,
    highest: Option<DashboardState>,
    busy: bool,
    /// No thread runs: nothing is sent.
    deaf: bool,
}

impl Dashboard {
    /// Reports to the dashboard if the device belongs to a fleet (`provisioned`) and the program is installed, otherwise to the log.
    #[must_use]
    pub fn new(paths: &Paths, provisioned: bool) -> Self {
        let program = paths.at(DASHBOARD_PROGRAM);
        if provisioned && program.is_file() {
            Self::with(DASHBOARD_INTERVAL, Box::new(move |percent, text| call(&program, percent, text)))
        } else {
            Self::with(Duration::ZERO, logger())
        }
    }

    /// Reports to the dashboard if the program is installed, otherwise nowhere.
    #[must_use]
    pub fn if_installed(paths: &Paths) -> Self {
        let program = paths.at(DASHBOARD_PROGRAM);
        if program.is_file() {
            Self::with(DASHBOARD_INTERVAL, Box::new(move |percent, text| call(&program, percent, text)))
        } else {
            Self::with(
                Duration::ZERO,
                Box::new(|percent, text| tracing::debug!("progress {percent}: {text}")),
            )
        }
    }

    /// `interval` is the least time from the begin of one call to the next.
    pub(crate) fn with(interval: Duration, carry: Carrier) -> Self {
        let shared = Arc::new(Shared { inner: Mutex::default(), changed: Condvar::new() });
        let worker = shared.clone();
        if thread::Builder::new()
            .name("dashboard".to_owned())
            .spawn(move || worker.work(interval, carry))
            .is_err()
        {
            shared.lock().deaf = true;
        }
        Dashboard { shared }
    }

    /// Reports a state. A lower percentage than before is left out: progress never decreases.
    pub fn report(&self, percent: u8, text: &'static str) {
        let state = DashboardState { percent, text };
        let mut inner = self.shared.lock();
        if inner.highest.is_some_and(|highest| percent < highest.percent || state == highest) {
            return;
        }
        inner.highest = Some(state);
        inner.next = Some(state);
        self.shared.changed.notify_all();
    }

    /// Waits at most `timeout` until the last state was sent. 25 seconds cover two calls at their limit.
    pub fn finish(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        let mut inner = self.shared.lock();
        while (inner.busy || inner.next.is_some()) && !inner.deaf {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::debug!("the last progress report was not sent in time");
                return;
            }
            inner =
                self.shared.changed.wait_timeout(inner, left).map_or_else(|e| e.into_inner().0, |(i, _)| i);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, interval: Duration, mut carry: Carrier) {
        loop {
            let mut inner = self.lock();
            while inner.next.is_none() {
                inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(state) = inner.next.take() else { continue };
            inner.busy = true;
            drop(inner);
            let began = Instant::now();
            carry(state.percent, state.text);
            self.lock().busy = false;
            self.changed.notify_all();
            thread::sleep(interval.saturating_sub(began.elapsed()));
        }
    }
}

fn call(program: &Path, percent: u8, text: &str) {
    let command = Command::script(program).map(|command| {
        command
            .args(["--percentage", &percent.to_string(), "--state", text])
            .without_own_variables()
            .limit(Some(PROGRAM_TIMEOUT))
    });
    let end = command.and_then(|command| {
        command.run(|said| {
            if let Said::Line(_, line) = said {
                tracing::debug!("resin-device-progress: {line}");
            }
        })
    });
    match end {
        Ok(End::Status(0)) => {}
        Ok(end) => tracing::debug!("resin-device-progress: {end}"),
        Err(e) => tracing::debug!("resin-device-progress: {e}"),
    }
}

fn logger() -> Carrier {
    let mut last: Option<DashboardState> = None;
    Box::new(move |percent, text| {
        if last.is_none_or(|l| l.text != text || percent >= l.percent.saturating_add(LOG_STEP_PERCENT)) {
            last = Some(DashboardState { percent, text });
            tracing::info!("Unprovisioned: Percentage {percent}, status {text}");
        }
    })
}
