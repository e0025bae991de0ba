//! What the program says on stderr: log events, and the one line about a failure.
//!
//! A line is written with one call, so that lines of several processes do not mix, and a stderr that cannot be written
//! to never matters: losing a message is better than losing the job.

use std::borrow::Cow;
use std::fmt;
use std::sync::{
    LazyLock, Mutex, PoisonError,
    atomic::{AtomicU8, Ordering},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    subscriber::Interest,
};
use tracing_subscriber::{Registry, layer::Context, layer::Layer, layer::SubscriberExt as _};

use super::output::Patient;

/// Environment variable that sets the level: `error`, `warn`, `info` or `debug`.
pub const LEVEL_VARIABLE: &str = "COPAL_LOG";

/// In whose name the program speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// `copal: …`, as programs on a command line do.
    Verb,
    /// `[name][LEVEL] …`, as the scripts with these names did, because people and tests look for these lines.
    Legacy(&'static str),
}

impl Voice {
    /// The line for `text` at `level`, without the newline.
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

    /// The line about the failure that ends the program.
    #[must_use]
    pub fn failure(self, text: &str) -> String {
        match self {
            Voice::Verb => format!("copal: {}", printable(text)),
            Voice::Legacy(_) => self.line(Level::ERROR, text),
        }
    }

    /// The scripts told their milestones without being asked; a command says only what is wrong.
    fn default_level(self) -> Level {
        match self {
            Voice::Verb => Level::WARN,
            Voice::Legacy(_) => Level::INFO,
        }
    }
}

/// Shows log events on stderr from now on, in the name of `voice`, at the level of [`LEVEL_VARIABLE`] or else at the
/// voice's own. Only the first call has an effect.
pub fn start(voice: Voice) {
    let asked = std::env::var_os(LEVEL_VARIABLE);
    let level = asked.as_deref().and_then(|v| parse_level(&v.to_string_lossy()));
    LEVEL.store(rank(level.unwrap_or(voice.default_level())), Ordering::Relaxed);
    if tracing::subscriber::set_global_default(Registry::default().with(Stderr { voice })).is_err() {
        return;
    }
    if let (Some(value), None) = (asked, level) {
        tracing::warn!(
            "{LEVEL_VARIABLE}={} is not one of error, warn, info, debug; ignored",
            value.to_string_lossy()
        );
    }
}

/// Shows events of `level` too, where the present level is quieter.
pub fn at_least(level: Level) {
    LEVEL.fetch_max(rank(level), Ordering::Relaxed);
}

static STDERR: LazyLock<Patient<std::io::Stderr>> = LazyLock::new(|| Patient::new(std::io::stderr()));

/// Whether stderr takes output now: a terminal that is stopped, or a pipe that nobody reads, does not.
pub fn is_open() -> bool {
    STDERR.is_open()
}

/// Writes one line to stderr, around whatever [`aside`] names, if stderr takes it.
pub fn stderr(line: &str) {
    if !is_open() {
        return;
    }
    let text = format!("{line}\n");
    let mut write = || {
        // Nobody is left who could be told.
        drop(STDERR.line(text.as_bytes()));
    };
    match &*ASIDE.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(around) => around(&mut write),
        None => write(),
    }
}

/// Writes the line that explains the exit code: a slow reader is waited for.
pub fn last(line: &str) {
    drop(STDERR.last_line(format!("{line}\n").as_bytes()));
}

/// Something that must step aside while a line is written, such as a progress bar: it is called with the write.
pub type Aside = Box<dyn Fn(&mut dyn FnMut()) + Send>;

/// Sets or removes what steps aside.
pub fn aside(around: Option<Aside>) {
    *ASIDE.lock().unwrap_or_else(PoisonError::into_inner) = around;
}

/// `text` with control characters escaped: names, labels and serial numbers come from images, media and devices, and
/// must not be able to steer a terminal or to forge a line of the log.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

static LEVEL: AtomicU8 = AtomicU8::new(1);
static ASIDE: Mutex<Option<Aside>> = Mutex::new(None);

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

struct Stderr {
    voice: Voice,
}

impl<S: Subscriber> Layer<S> for Stderr {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // The level may still rise after an event was first met.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        wanted(metadata.target(), *metadata.level(), LEVEL.load(Ordering::Relaxed))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        stderr(&self.voice.line(*event.metadata().level(), &text.finish()));
    }
}

/// Other crates' events are for us, not for the owner: only their warnings pass, unless debugging.
fn wanted(target: &str, level: Level, most: u8) -> bool {
    let ours = module_path!().split("::").next();
    let most = if target.split("::").next() == ours || most > 2 { most } else { most.min(1) };
    rank(level) <= most
}

/// Collects an event's message and, behind it, its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn finish(self) -> String {
        format!("{}{}", self.message, self.fields).trim_start().to_owned()
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message.push_str(&format!("{value:?}"));
        } else {
            self.fields.push_str(&format!(" {}={value:?}", field.name()));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

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
    fn control_characters_of_others_are_escaped() {
        assert_eq!(printable("Käse /dev/sda"), "Käse /dev/sda");
        assert_eq!(printable("a\x1b[2Jb\nc\u{9b}1m"), "a\\u{1b}[2Jb\\nc\\u{9b}1m");
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
        assert!(wanted(ours, Level::INFO, rank(Level::INFO)));
        assert!(!wanted(ours, Level::INFO, rank(Level::WARN)));
        assert!(!wanted("zbus::connection", Level::INFO, rank(Level::INFO)));
        assert!(wanted("zbus::connection", Level::WARN, rank(Level::INFO)));
        assert!(!wanted("zbus::connection", Level::WARN, rank(Level::ERROR)));
        assert!(wanted("zbus::connection", Level::DEBUG, rank(Level::DEBUG)));
    }

    #[test]
    fn message_comes_before_fields() {
        #[derive(Clone, Default)]
        struct Keep(Arc<Mutex<Vec<String>>>);
        impl<S: Subscriber> Layer<S> for Keep {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                let mut text = Text::default();
                event.record(&mut text);
                self.0.lock().unwrap().push(text.finish());
            }
        }
        let kept = Keep::default();
        tracing::subscriber::with_default(Registry::default().with(kept.clone()), || {
            tracing::warn!(offset = 512, device = "/dev/sda", "read {}", "again");
            tracing::warn!(offset = 7);
        });
        assert_eq!(*kept.0.lock().unwrap(), ["read again offset=512 device=/dev/sda", "offset=7"]);
    }
}
