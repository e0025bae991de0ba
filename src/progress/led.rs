//! An LED for devices without a screen: blinks slowly while flashing, is on when done, blinks fast after a failure.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::statfs::{SYSFS_MAGIC, statfs};

use super::Stage;
use super::sink::{Due, Sink, Snapshot};
use crate::config::flasher_conf::RawConf;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};

const SUPERVISOR_CONF: &str = "/etc/balena-supervisor/supervisor.conf";
const LED_KEY: &str = "LED_FILE";

const SLOW_BLINK: Duration = Duration::from_secs(1);
const FAST_BLINK: Duration = Duration::from_millis(100);

/// A directory whose files count as LEDs, for tests.
const DIRECTORY_VARIABLE: &str = "COPAL_LED_DIRECTORY";

/// Limit for the last write. Only an LED whose bus hangs takes longer.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    Untouched,
    /// One second on, one second off: at work.
    Slow,
    /// On: done.
    Solid,
    /// A tenth of a second on, a tenth off: failed.
    Fast,
    /// The LED belongs to another program from here on.
    HandsOff,
}

impl Pattern {
    fn pause(self) -> Option<Duration> {
        match self {
            Pattern::Slow => Some(SLOW_BLINK),
            Pattern::Fast => Some(FAST_BLINK),
            Pattern::Untouched | Pattern::Solid | Pattern::HandsOff => None,
        }
    }
}

/// An LED, or none. Clones share one LED. No error is reported.
#[derive(Clone, Default)]
pub struct Led {
    shared: Option<Arc<Shared>>,
}

struct Shared {
    file: PathBuf,
    places: Places,
    state: Mutex<LedState>,
    changed: Condvar,
}

struct LedState {
    pattern: Pattern,
    /// What was written to the file. It is written without the lock: no caller must wait for an LED.
    shown: Pattern,
}

impl Led {
    /// The LED that the device's configuration names.
    #[must_use]
    pub fn configured(paths: &Paths) -> Self {
        let file = match RawConf::load(&paths.at(SUPERVISOR_CONF)) {
            Ok(conf) => conf.get(LED_KEY).unwrap_or_default().to_owned(),
            Err(e) => {
                tracing::debug!("no LED: {e}");
                String::new()
            }
        };
        match file.as_str() {
            "" | "/dev/null" => Led::default(),
            file => Led::at(&paths.at(file), paths).unwrap_or_else(|e| {
                tracing::warn!("{SUPERVISOR_CONF} names no LED: {e}");
                Led::default()
            }),
        }
    }

    /// `file` takes `1` and `0`. It may be missing: some drivers come late.
    ///
    /// # Errors
    /// The file exists outside sysfs: a write could damage a disk, an image or a document.
    pub fn at(file: &Path, paths: &Paths) -> Result<Self> {
        if file == Path::new("/dev/null") {
            return Ok(Led::default());
        }
        let places = Places::of(paths);
        if let Err(e) = places.check(file)
            && e.kind() != io::ErrorKind::NotFound
        {
            let message = format!("cannot use {} as an LED", file.display());
            let error = Error::new(Code::Usage, message).object(file.display()).because(e);
            return Err(error.with_hint("name the file `brightness` of an LED below /sys/class/leds"));
        }
        let state = Mutex::new(LedState { pattern: Pattern::Untouched, shown: Pattern::Untouched });
        let shared = Arc::new(Shared { file: file.to_owned(), places, state, changed: Condvar::new() });
        let worker = shared.clone();
        match thread::Builder::new().name("led".to_owned()).spawn(move || worker.work()) {
            Ok(_) => Ok(Led { shared: Some(shared) }),
            Err(_) => Ok(Led::default()),
        }
    }

    /// After [`Pattern::Solid`] returns when it is shown, since the program may end then; after [`Pattern::HandsOff`] when no write is
    /// under way. Waits at most a second for an LED that hangs.
    pub fn show(&self, pattern: Pattern) {
        let Some(shared) = &self.shared else { return };
        let mut state = shared.lock();
        if state.pattern == Pattern::HandsOff {
            return;
        }
        state.pattern = pattern;
        shared.changed.notify_all();
        let end = Instant::now() + LAST_WRITE_TIMEOUT;
        let lasts = matches!(pattern, Pattern::Solid | Pattern::HandsOff);
        while lasts && state.shown != pattern && Instant::now() < end {
            state = shared.wait(state, Some(end));
        }
    }

    /// Shows the failure for `time`, then returns: the LED keeps its last state when the program ends.
    pub fn fail(&self, time: Duration) {
        self.show(Pattern::Fast);
        if self.shared.as_ref().is_some_and(|s| s.lock().pattern == Pattern::Fast) {
            thread::sleep(time);
        }
    }

    #[must_use]
    pub fn sink(&self) -> Box<dyn Sink> {
        Box::new(LedSink(self.clone()))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, LedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

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
            on = next != state.shown || !on;
            drop(state);
            if let Err(e) = self.switch(on)
                && !complained
            {
                complained = true;
                tracing::debug!("the LED {} cannot be written: {e}", self.file.display());
            }
            state = self.lock();
            state.shown = next;
            self.changed.notify_all();
        }
        state.shown = Pattern::HandsOff;
        self.changed.notify_all();
    }

    fn switch(&self, on: bool) -> io::Result<()> {
        self.places.check(&self.file)?;
        // The file is never created. A FIFO without a reader must not block.
        let mut file =
            OpenOptions::new().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&self.file)?;
        file.write_all(if on { b"1" } else { b"0" })
    }
}

/// Locations where an LED is accepted: sysfs; in tests also another root, and the directory in `COPAL_LED_DIRECTORY`.
struct Places {
    others: Vec<PathBuf>,
}

impl Places {
    fn of(paths: &Paths) -> Places {
        let root = Some(paths.root().to_owned()).filter(|root| root != Path::new("/"));
        let named = std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from);
        Places { others: [root, named].into_iter().flatten().collect() }
    }

    /// Before the file is opened, which may have an effect of its own.
    fn check(&self, file: &Path) -> io::Result<()> {
        let real = file.canonicalize()?;
        let is_for_tests =
            self.others.iter().any(|top| top.canonicalize().is_ok_and(|top| real.starts_with(top)));
        if is_for_tests || (real.is_file() && statfs(&real)?.filesystem_type() == SYSFS_MAGIC) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file in sysfs"))
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
