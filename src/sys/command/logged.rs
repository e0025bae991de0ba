//! Runs foreign programs with their output in the log.

use std::ffi::OsString;
use std::io;
use std::time::{Duration, Instant};

use tracing::Level;

use super::{Command, End, Event};

/// Not passed on to foreign programs: the system's shell helpers (`balena-config-defaults`) take its presence for an encrypted installation.
const ENCRYPTED_INSTALLATION: &str = "CRYPT";

/// Not passed on to any other process: systemd's protocols with the main process of a service (sd_notify(3), sd_watchdog_enabled(3),
/// sd_listen_fds(3)). systemd logs each message of another process, such as a copal that runs hooks below this one.
pub(crate) const SERVICE_PROTOCOL: [&str; 7] = [
    "FDSTORE",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    pub end: End,
    pub last: String,
    pub time: Duration,
}

impl Ended {
    #[must_use]
    pub(crate) fn because(&self) -> io::Error {
        because(self.end, &self.last)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Speaker<'a> {
    /// Prefix of each line.
    pub name: &'a str,
    /// Name in a warning about silence.
    pub full: &'a str,
    /// For the journal, if it is a hook.
    pub hook: Option<&'a str>,
    /// Lines of the scripts' logging helper (`[name][LEVEL] text`) keep their level, and lose their prefix.
    pub levels: bool,
}

impl Command {
    /// Removes variables that are for this process alone.
    #[must_use]
    pub(crate) fn without_own_variables(self) -> Self {
        SERVICE_PROTOCOL.iter().chain([&ENCRYPTED_INSTALLATION]).fold(self, Command::without)
    }

    /// Runs the program to its end and logs its output line by line. `started` gets its process number.
    pub(crate) fn run_logged(self, speaker: Speaker<'_>, started: impl FnOnce(u32)) -> io::Result<Ended> {
        let begun = Instant::now();
        let mut running = self.without_own_variables().start()?;
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
        let (level, text) = if self.levels { level_and_text(line) } else { (Level::INFO, line) };
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

pub(crate) fn warn_of_silence(name: &str, time: Duration) {
    let minutes = time.as_secs() / 60;
    tracing::warn!("{name} has been silent for {minutes} min; copal still waits for it");
}

pub fn keep(last: &mut String, line: &str) {
    if !line.trim().is_empty() {
        line.trim().clone_into(last);
    }
}

#[must_use]
pub(crate) fn because(end: End, last: &str) -> io::Error {
    const MAX_CAUSE_CHARS: usize = 200;
    /// Of an error of another copal, so that its code and its remedy are left.
    const MAX_ERROR_CHARS: usize = 600;
    let text = level_and_text(last).1;
    let most = if text.contains("]; ") { MAX_ERROR_CHARS } else { MAX_CAUSE_CHARS };
    let words: String = text.chars().take(most).collect();
    io::Error::other(if words.is_empty() {
        end.to_string()
    } else {
        format!("{end}, after it said: {words}")
    })
}

/// Splits a line of the scripts' logging helper (`[name][LEVEL] text`).
#[must_use]
pub(crate) fn level_and_text(line: &str) -> (Level, &str) {
    let parts = line.strip_prefix('[').and_then(|l| l.split_once("][")).and_then(|(_, l)| l.split_once("] "));
    match parts {
        Some(("ERROR", text)) => (Level::ERROR, text),
        Some(("WARN", text)) => (Level::WARN, text),
        Some(("INFO", text)) => (Level::INFO, text),
        Some(("DEBUG", text)) => (Level::DEBUG, text),
        _ => (Level::INFO, line),
    }
}

/// The value of a variable with a time limit: whole seconds above zero. Empty means none.
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
        assert_eq!(
            level_and_text("[resin-init-flasher][ERROR] no [key][x] here"),
            (Level::ERROR, "no [key][x] here")
        );
        assert_eq!(level_and_text("[x][WARN] y"), (Level::WARN, "y"));
        assert_eq!(level_and_text("[x][INFO] "), (Level::INFO, ""));
        assert_eq!(level_and_text("[x][DEBUG] z"), (Level::DEBUG, "z"));
        for plain in ["plain", "[x] y", "[x][LOUD] y", "[x][ERROR]y"] {
            assert_eq!(level_and_text(plain), (Level::INFO, plain));
        }
    }
}
