//! The program's output: log events, and the one line about a failure; on stderr, in the journal, or both.
//!
//! Where there is a journal, all output of a legacy name goes there as structured entries; of a verb, every event with a
//! `MESSAGE_ID`. stderr gets the output too, unless stderr itself ends in the journal. Without a journal, and in a container,
//! only stderr gets it. For a program that calls [`steps_on_stdout`], stdout takes the place of stderr, except for warnings and errors.

use std::path::{Path, PathBuf};
use std::sync::{
    Mutex, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicU8, Ordering},
};
use std::time::Duration;

use tracing::{Event, Level, Metadata, Subscriber, subscriber::Interest};
use tracing_subscriber::{Registry, layer::Context, layer::Layer, layer::SubscriberExt as _};

pub mod events;
mod journal;
mod streams;
mod text;

use journal::{Journal, JournalEntry};
pub use streams::{draw, stderr};
use text::Text;
pub(crate) use text::{printable, printable_json, printable_lines, shown};

/// Sets the level: `error`, `warn`, `info` or `debug`.
pub const LEVEL_VARIABLE: &str = "COPAL_LOG";

/// systemd sets it for a service whose output goes to the journal.
const STREAM_VARIABLE: &str = "JOURNAL_STREAM";

/// The field that makes a log line an event with a catalogue entry.
const MESSAGE_ID: &str = "MESSAGE_ID";

/// The form of the program's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// `copal: …`, as for programs on a command line.
    Verb,
    /// `[name][LEVEL] …`, as the scripts with these names printed it: people and tests look for these lines.
    Legacy(&'static str),
}

impl Voice {
    #[must_use]
    pub fn line(self, level: Level, text: &str) -> String {
        let text = printable(text);
        match (self, level) {
            (Voice::Verb, Level::ERROR) => format!("copal: error: {text}"),
            (Voice::Verb, Level::WARN) => format!("copal: warning: {text}"),
            (Voice::Verb, Level::INFO) => format!("copal: {text}"),
            (Voice::Verb, _) => format!("copal: debug: {text}"),
            (Voice::Legacy(name), _) => format!("[{name}][{level}] {text}"),
        }
    }

    #[must_use]
    pub fn failure(self, text: &str) -> String {
        match self {
            Voice::Verb => format!("copal: {}", printable(text)),
            Voice::Legacy(_) => self.line(Level::ERROR, text),
        }
    }

    fn identifier(self) -> &'static str {
        match self {
            Voice::Verb => "copal",
            Voice::Legacy(name) => name,
        }
    }

    /// The scripts logged their progress by default; a verb prints only problems.
    fn default_level(self) -> Level {
        match self {
            Voice::Verb => Level::WARN,
            Voice::Legacy(_) => Level::INFO,
        }
    }
}

/// At the level of [`LEVEL_VARIABLE`], or else at the default of `voice`. Only the first call has an effect.
pub fn start(voice: Voice) {
    start_below(voice, Path::new("/"));
}

/// [`start`] with the journal, and the marks of a container, below `root`.
pub fn start_below(voice: Voice, root: &Path) {
    let requested = std::env::var_os(LEVEL_VARIABLE);
    let level = requested.as_deref().and_then(|v| parse_level(&v.to_string_lossy()));
    LEVEL.store(rank(level.unwrap_or(voice.default_level())), Ordering::Relaxed);
    let log = LOG.get_or_init(|| Log::new(voice, root));
    if tracing::subscriber::set_global_default(Registry::default().with(Show(log))).is_err() {
        return;
    }
    if let (Some(value), None) = (requested, level) {
        tracing::warn!(
            "{LEVEL_VARIABLE}={} is not one of error, warn, info, debug; ignored",
            value.to_string_lossy()
        );
    }
}

/// From now on stdout has what is neither a warning nor an error. Callers archive it as the record of the job.
pub(crate) fn steps_on_stdout() {
    STEPS_ON_STDOUT.store(true, Ordering::Relaxed);
}

#[must_use]
pub fn voice() -> Voice {
    LOG.get().map_or(Voice::Verb, |log| log.voice)
}

#[must_use]
pub fn level() -> &'static str {
    match LEVEL.load(Ordering::Relaxed) {
        0 => "error",
        1 => "warn",
        2 => "info",
        _ => "debug",
    }
}

pub(crate) fn at_least(level: Level) {
    LEVEL.fetch_max(rank(level), Ordering::Relaxed);
}

/// From now on a failure that ends the program is the event `id`, with these additional journal fields.
pub fn failing_as(id: &'static str, fields: &[(&'static str, &str)]) {
    let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    *FAILING.lock().unwrap_or_else(PoisonError::into_inner) = Some((id, fields));
}

/// Undoes [`failing_as`], because the job has succeeded.
pub fn failing_plainly() {
    *FAILING.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Reports why the program failed: on stderr, where it waits for a slow reader, and as one journal entry with the error code `code`.
pub fn last(voice: Voice, text: &str, code: &str) {
    if !(last_in_journal(voice, text, code) && LOG.get().is_some_and(|log| log.stderr_is_journal)) {
        streams::last_line(&voice.failure(text));
    }
}

/// Shows a failure on the device's console too, if stderr ends in the journal: an operator beside the device has no other view.
pub(crate) fn on_console(text: &str) {
    if let Some(log) = LOG.get()
        && log.stderr_is_journal
    {
        streams::console(&log.console, &log.voice.failure(text));
    }
}

/// [`last`] for a failure that is reported elsewhere than on stderr. Returns whether the journal has it.
pub fn last_in_journal(voice: Voice, text: &str, code: &str) -> bool {
    let Some(log) = LOG.get() else { return false };
    let Some(journal) = &log.journal else { return false };
    let event = FAILING.lock().unwrap_or_else(PoisonError::into_inner).take();
    if event.is_none() && !log.journal_takes_all() {
        return false;
    }
    let mut entry = JournalEntry::new(voice.identifier(), Level::ERROR, &printable(text));
    entry.field("COPAL_ERROR_CODE", code);
    if let Some((id, fields)) = event {
        entry.field(MESSAGE_ID, id);
        fields.iter().for_each(|(name, value)| entry.field(name, value));
    }
    journal.send_last(&entry, LAST_TIMEOUT).is_ok()
}

/// How long to wait for a busy journal at the end.
const LAST_TIMEOUT: Duration = Duration::from_secs(10);

type FailureEvent = (&'static str, Vec<(&'static str, String)>);

static LEVEL: AtomicU8 = AtomicU8::new(1);
static STEPS_ON_STDOUT: AtomicBool = AtomicBool::new(false);
static LOG: OnceLock<Log> = OnceLock::new();
static FAILING: Mutex<Option<FailureEvent>> = Mutex::new(None);

fn parse_level(text: &str) -> Option<Level> {
    Some(match text.to_ascii_lowercase().as_str() {
        "error" => Level::ERROR,
        "warn" | "warning" => Level::WARN,
        "info" => Level::INFO,
        "debug" => Level::DEBUG,
        _ => return None,
    })
}

fn rank(level: Level) -> u8 {
    match level {
        Level::ERROR => 0,
        Level::WARN => 1,
        Level::INFO => 2,
        Level::DEBUG => 3,
        Level::TRACE => 4,
    }
}

struct Log {
    voice: Voice,
    console: PathBuf,
    journal: Option<Journal>,
    stderr_is_journal: bool,
    stdout_is_journal: bool,
}

impl Log {
    fn new(voice: Voice, root: &Path) -> Self {
        let stream = std::env::var(STREAM_VARIABLE).ok();
        Log {
            voice,
            console: root.join("dev/console"),
            journal: Journal::below(root),
            stderr_is_journal: streams::is_the_journals(stream.as_deref(), std::io::stderr()),
            stdout_is_journal: streams::is_the_journals(stream.as_deref(), std::io::stdout()),
        }
    }

    /// A verb on a terminal prints there; the journal gets only what concerns the device.
    fn journal_takes_all(&self) -> bool {
        self.stderr_is_journal || self.voice != Voice::Verb
    }

    fn journal_takes(&self, metadata: &Metadata<'_>) -> bool {
        let is_event = metadata.fields().field(MESSAGE_ID).is_some();
        self.journal.is_some() && (is_event || self.journal_takes_all() && is_loud_enough(metadata))
    }

    fn show(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let text = Text::of(event);
        let line = text.line();
        let journaled = self.journal_takes(metadata)
            && self.journal.as_ref().is_some_and(|journal| {
                let identifier = self.voice.identifier();
                let mut entry = JournalEntry::new(identifier, *metadata.level(), &printable(&line));
                text.journal().iter().for_each(|(name, value)| entry.field(name, value));
                journal.send(&entry).is_ok()
            });
        if !is_loud_enough(metadata) {
            return;
        }
        let (stream_is_journal, write): (bool, fn(&str)) =
            if *metadata.level() > Level::WARN && STEPS_ON_STDOUT.load(Ordering::Relaxed) {
                (self.stdout_is_journal, streams::stdout)
            } else {
                (self.stderr_is_journal, stderr)
            };
        if !(journaled && stream_is_journal) {
            write(&self.voice.line(*metadata.level(), &line));
        }
    }
}

struct Show(&'static Log);

impl<S: Subscriber> Layer<S> for Show {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level may rise later.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_loud_enough(metadata) || self.0.journal_takes(metadata)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.0.show(event);
    }
}

fn is_loud_enough(metadata: &Metadata<'_>) -> bool {
    shows(metadata.target(), *metadata.level(), LEVEL.load(Ordering::Relaxed))
}

/// Of other crates only warnings pass, except at the level debug.
fn shows(target: &str, level: Level, most: u8) -> bool {
    let ours = module_path!().split("::").next();
    let most = if target.split("::").next() == ours || most > 2 { most } else { most.min(1) };
    rank(level) <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_and_scripts_speak_differently() {
        assert_eq!(Voice::Verb.line(Level::WARN, "no direct I/O"), "copal: warning: no direct I/O");
        assert_eq!(Voice::Verb.line(Level::INFO, "done"), "copal: done");
        assert_eq!(Voice::Verb.failure("cannot"), "copal: cannot");
        let legacy = Voice::Legacy("fatrw");
        assert_eq!(legacy.line(Level::WARN, "x"), "[fatrw][WARN] x");
        assert_eq!(legacy.failure("cannot"), "[fatrw][ERROR] cannot");
    }

    #[test]
    fn levels_are_words() {
        assert_eq!(parse_level("WARN"), Some(Level::WARN));
        assert_eq!(parse_level("debug"), Some(Level::DEBUG));
        assert_eq!(parse_level("loud"), None);
    }

    #[test]
    fn other_crates_pass_with_warnings_only() {
        let ours = module_path!();
        assert!(shows(ours, Level::INFO, rank(Level::INFO)));
        assert!(!shows(ours, Level::INFO, rank(Level::WARN)));
        assert!(!shows("zbus::connection", Level::INFO, rank(Level::INFO)));
        assert!(shows("zbus::connection", Level::WARN, rank(Level::INFO)));
        assert!(!shows("zbus::connection", Level::WARN, rank(Level::ERROR)));
        assert!(shows("zbus::connection", Level::DEBUG, rank(Level::DEBUG)));
    }
}
