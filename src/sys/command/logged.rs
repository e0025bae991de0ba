//! Programs of other people, with the log as the place for what they say.

use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};

use tracing::Level;

use super::{Command, End, Event};

/// Never passed on: the shell helpers of the system (`balena-config-defaults`) take its presence for an encrypted
/// installation.
pub const NOT_PASSED_ON: &str = "CRYPT";

/// How a program ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// How.
    pub end: End,
    /// The last line that said something.
    pub last: String,
    /// How long it took.
    pub time: Duration,
}

impl Ended {
    /// Its end and its last words, as a cause.
    #[must_use]
    pub fn because(&self) -> io::Error {
        because(self.end, &self.last)
    }
}

/// Whose lines they are.
#[derive(Debug, Clone, Copy)]
pub struct Speaker<'a> {
    /// In front of each line.
    pub name: &'a str,
    /// What a warning about silence calls it.
    pub full: &'a str,
    /// The hook, for the journal, if it is one.
    pub hook: Option<&'a str>,
    /// Whether lines of the scripts' logging helper (`[name][LEVEL] text`) keep their level rather than their form.
    pub levels: bool,
}

impl Command {
    /// Runs it to its end, with what it says in the log line by line. `started` is told its number.
    ///
    /// # Errors
    /// It cannot be started or followed.
    pub fn run_logged(self, speaker: Speaker<'_>, started: impl FnOnce(u32)) -> io::Result<Ended> {
        let begun = Instant::now();
        let mut running = self.without(NOT_PASSED_ON).start()?;
        started(running.id());
        let mut last = String::new();
        loop {
            match running.next(None)? {
                Event::Line(_, line) => speaker.says(&line, &mut last),
                Event::Silent(time) => warn_of_silence(speaker.full, time),
                Event::Ended(end) => return Ok(Ended { end, last, time: begun.elapsed() }),
                Event::Waited => {}
            }
        }
    }
}

impl Speaker<'_> {
    fn says(&self, line: &str, last: &mut String) {
        let (level, text) = if self.levels { told(line) } else { (Level::INFO, line) };
        let (name, hook) = (self.name, self.hook);
        match level {
            Level::ERROR => tracing::error!(COPAL_HOOK = hook, "{name}: {text}"),
            Level::WARN => tracing::warn!(COPAL_HOOK = hook, "{name}: {text}"),
            Level::INFO => tracing::info!(COPAL_HOOK = hook, "{name}: {text}"),
            _ => tracing::debug!(COPAL_HOOK = hook, "{name}: {text}"),
        }
        keep(last, text);
    }
}

/// Warns that a program has said nothing for `time`.
pub fn warn_of_silence(name: &str, time: Duration) {
    let minutes = time.as_secs() / 60;
    tracing::warn!("{name} has been silent for {minutes} min; it is still waited for");
}

/// Keeps the last line that says something.
pub fn keep(last: &mut String, line: &str) {
    if !line.trim().is_empty() {
        line.trim().clone_into(last);
    }
}

/// How something ended, and its last words.
#[must_use]
pub fn because(end: End, last: &str) -> io::Error {
    const MOST: usize = 200;
    let words: String = last.chars().take(MOST).collect();
    io::Error::other(if words.is_empty() {
        end.to_string()
    } else {
        format!("{end}, after it said: {words}")
    })
}

/// Takes a line of the scripts' logging helper (`[name][LEVEL] text`) apart.
#[must_use]
pub fn told(line: &str) -> (Level, &str) {
    let parts = line.strip_prefix('[').and_then(|l| l.split_once("][")).and_then(|(_, l)| l.split_once("] "));
    match parts {
        Some(("ERROR", text)) => (Level::ERROR, text),
        Some(("WARN", text)) => (Level::WARN, text),
        Some(("INFO", text)) => (Level::INFO, text),
        Some(("DEBUG", text)) => (Level::DEBUG, text),
        _ => (Level::INFO, line),
    }
}

/// The value of a variable that limits how long a program may take: whole seconds, above zero. An empty one counts as
/// none.
///
/// # Errors
/// It is something else; the text says what was found.
pub fn seconds(value: Option<OsString>) -> Result<Option<Duration>, String> {
    let Some(value) = value.filter(|v| !v.is_empty()) else { return Ok(None) };
    match value.to_str().and_then(|v| v.parse::<u32>().ok()) {
        Some(seconds @ 1..) => Ok(Some(Duration::from_secs(seconds.into()))),
        _ => Err(value.to_string_lossy().into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_logging_helper_keep_their_level() {
        assert_eq!(told("[resin-init-flasher][ERROR] no [key][x] here"), (Level::ERROR, "no [key][x] here"));
        assert_eq!(told("[x][WARN] y"), (Level::WARN, "y"));
        assert_eq!(told("[x][INFO] "), (Level::INFO, ""));
        assert_eq!(told("[x][DEBUG] z"), (Level::DEBUG, "z"));
        for plain in ["plain", "[x] y", "[x][LOUD] y", "[x][ERROR]y"] {
            assert_eq!(told(plain), (Level::INFO, plain));
        }
    }
}
