//! An LED for whoever stands before a device without a screen: it blinks slowly while flashing, shines when done, and
//! blinks fast after a failure.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;

use super::Stage;
use super::meter::{Due, Sink, Snapshot};
use crate::config::flasher_conf::RawConf;
use crate::config::paths::Paths;

const CONF: &str = "/etc/balena-supervisor/supervisor.conf";
const KEY: &str = "LED_FILE";

const SLOW: Duration = Duration::from_secs(1);
const FAST: Duration = Duration::from_millis(100);

/// For the writing of what has the last word. Longer takes only an LED whose bus hangs.
const TIMEOUT: Duration = Duration::from_secs(1);

/// What it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Nothing has been shown yet.
    Untouched,
    /// One second on, one second off: at work.
    Slow,
    /// On: done.
    Solid,
    /// A tenth of a second on, a tenth off: failed.
    Fast,
    /// It is somebody else's from here on.
    HandsOff,
}

impl Pattern {
    /// Time between two changes.
    fn pause(self) -> Option<Duration> {
        match self {
            Pattern::Slow => Some(SLOW),
            Pattern::Fast => Some(FAST),
            Pattern::Untouched | Pattern::Solid | Pattern::HandsOff => None,
        }
    }
}

/// An LED, or none. Clones are the same one. Nothing here can fail.
#[derive(Clone, Default)]
pub struct Led {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    file: PathBuf,
    state: Mutex<LedState>,
    changed: Condvar,
}

struct LedState {
    pattern: Pattern,
    /// What the file has been told. It is written without the lock: nobody must have to wait for an LED.
    shown: Pattern,
}

impl Led {
    /// The LED that the device's configuration names, below the root of `paths`.
    #[must_use]
    pub fn configured(paths: &Paths) -> Self {
        let file = match RawConf::load(&paths.at(CONF)) {
            Ok(conf) => conf.get(KEY).unwrap_or_default().to_owned(),
            Err(e) => {
                tracing::debug!("no LED: {e}");
                String::new()
            }
        };
        match file.as_str() {
            "" | "/dev/null" => Led::default(),
            file => Led::at(&paths.at(file)),
        }
    }

    /// An LED by the file that takes `1` and `0`.
    #[must_use]
    pub fn at(file: &Path) -> Self {
        if file == Path::new("/dev/null") {
            return Led::default();
        }
        let state = Mutex::new(LedState { pattern: Pattern::Untouched, shown: Pattern::Untouched });
        let shared = Arc::new(Shared { file: file.to_owned(), state, changed: Condvar::new() });
        let worker = shared.clone();
        match thread::Builder::new().name("led".to_owned()).spawn(move || worker.work()) {
            Ok(_) => Led { shared: Some(shared) },
            Err(_) => Led::default(),
        }
    }

    /// Shows this from now on. [`Pattern::Solid`] is there on return, since the program may end then. After
    /// [`Pattern::HandsOff`] nothing is shown any more, and on return no write is under way. An LED that hangs is
    /// waited for no longer than a second.
    pub fn show(&self, pattern: Pattern) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        if state.pattern == Pattern::HandsOff {
            return;
        }
        state.pattern = pattern;
        shared.changed.notify_all();
        let end = Instant::now() + TIMEOUT;
        let lasts = matches!(pattern, Pattern::Solid | Pattern::HandsOff);
        while lasts && state.shown != pattern && Instant::now() < end {
            state = shared.wait(state, Some(end));
        }
    }

    /// Shows the failure for this long, and returns then: the LED stays as it is when the program ends.
    pub fn fail(&self, time: Duration) {
        self.show(Pattern::Fast);
        if self.shared.as_ref().is_some_and(|s| s.lock().pattern == Pattern::Fast) {
            thread::sleep(time);
        }
    }

    /// What a job's progress is shown through.
    #[must_use]
    pub fn sink(&self) -> Box<dyn Sink> {
        Box::new(LedSink(self.clone()))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, LedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most until `end`.
    fn wait<'a>(&self, state: MutexGuard<'a, LedState>, end: Option<Instant>) -> MutexGuard<'a, LedState> {
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(left) => {
                self.changed.wait_timeout(state, left).map_or_else(|e| e.into_inner().0, |(s, _)| s)
            }
        }
    }

    fn work(&self) {
        let mut complained = false;
        let mut on = false;
        let mut state = self.lock();
        while state.pattern != Pattern::HandsOff {
            let end = state.shown.pause().map(|pause| Instant::now() + pause);
            while state.pattern == state.shown && end.is_none_or(|end| Instant::now() < end) {
                state = self.wait(state, end);
            }
            let next = state.pattern;
            if next == Pattern::HandsOff {
                break;
            }
            // A new pattern begins with light.
            on = next != state.shown || !on;
            drop(state);
            if let Err(e) = self.switch(on)
                && !complained
            {
                complained = true;
                tracing::debug!("the LED {} cannot be switched: {e}", self.file.display());
            }
            state = self.lock();
            state.shown = next;
            self.changed.notify_all();
        }
        state.shown = Pattern::HandsOff;
        self.changed.notify_all();
    }

    fn switch(&self, on: bool) -> io::Result<()> {
        // Never made where it is not; and a FIFO without a reader must not hold anybody.
        let mut file =
            OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&self.file)?;
        file.write_all(if on { b"1" } else { b"0" })
    }
}

struct LedSink(Led);

impl Sink for LedSink {
    fn show(&mut self, snapshot: &Snapshot) -> Due {
        if snapshot.stage == Stage::Write {
            self.0.show(Pattern::Slow);
        }
        Due { bytes: u64::MAX, after: Duration::MAX }
    }
}
