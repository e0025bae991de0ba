//! One bash that keeps running, for shell functions of the board that share variables.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::Level;

use super::board::Environment;
use crate::sys::command::{self, Command, End, Event, Running, Stream};

const DRIVER: &str = include_str!("shell.sh");

/// As whom the files see themselves (`$0`): the program that used to source them.
const NAME: &str = "resin-init-flasher";

/// For traps on EXIT, which may unmount or wipe.
const TO_LEAVE: Duration = Duration::from_secs(30);

/// What a request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The status of the command.
    Status(i32),
    /// The shell ended instead; how, and its last words.
    Gone(End, String),
}

/// A bash. Dropped, it is given time to leave in good order.
pub(super) struct Shell {
    running: Running,
    /// In front of its lines in the log.
    name: &'static str,
    last: String,
}

impl Shell {
    /// Starts a bash that has read nothing yet; `None` without bash.
    pub(super) fn start(
        name: &'static str,
        environment: &Environment,
        more: &[(&str, &str)],
        silence: Duration,
    ) -> io::Result<Option<Self>> {
        let Some(bash) = command::bash() else { return Ok(None) };
        let mut command = Command::new(bash)
            .args(["--noprofile", "--norc", "-c", DRIVER, NAME])
            .envs(environment.variables())
            .envs(more.iter().copied())
            .apart()
            .with_input()
            .silence(silence);
        for variable in [command::NOT_PASSED_ON, "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS"] {
            command = command.without(variable);
        }
        Ok(Some(Shell { running: command.start()?, name, last: String::new() }))
    }

    /// Reads a shell file, as `.` does.
    pub(super) fn source(&mut self, file: &Path) -> io::Result<Answer> {
        // A line is a request.
        match file.to_str().filter(|f| !f.contains('\n')) {
            Some(file) => self.ask(&format!("source {file}")),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is not one line of text")),
        }
    }

    /// Whether a function of this name is defined; the status is 0 if so.
    pub(super) fn has(&mut self, function: &str) -> io::Result<Answer> {
        self.ask(&format!("has {function}"))
    }

    /// Calls a function, in a condition: `set -e` is off in it.
    pub(super) fn call(&mut self, function: &str) -> io::Result<Answer> {
        self.ask(&format!("call {function}"))
    }

    /// Ends the shell after this time, whatever it does then.
    pub(super) fn limit(&mut self, limit: Duration) {
        self.running.limit(Some(limit));
    }

    fn ask(&mut self, request: &str) -> io::Result<Answer> {
        self.running.listen();
        self.last.clear();
        if let Err(e) = self.running.say(request) {
            // It has ended, and says how below.
            tracing::debug!("{}: {request}: {e}", self.name);
        }
        loop {
            match self.running.next(None)? {
                Event::Line(Stream::Out, line) => {
                    if let Ok(status) = line.parse() {
                        self.drain()?;
                        return Ok(Answer::Status(status));
                    }
                    self.heard(&line);
                }
                Event::Line(Stream::Err, line) => self.heard(&line),
                Event::Silent(time) => command::warn_of_silence(self.name, time),
                Event::Ended(end) => return Ok(Answer::Gone(end, std::mem::take(&mut self.last))),
                Event::Waited => {}
            }
        }
    }

    /// What it said before its answer belongs before it in the log.
    fn drain(&mut self) -> io::Result<()> {
        while let Event::Line(_, line) = self.running.next(Some(Instant::now()))? {
            self.heard(&line);
        }
        Ok(())
    }

    fn heard(&mut self, line: &str) {
        let (level, text) = command::told(line);
        let name = self.name;
        match level {
            Level::ERROR => tracing::error!("{name}: {text}"),
            Level::WARN => tracing::warn!("{name}: {text}"),
            _ => tracing::info!("{name}: {text}"),
        }
        command::keep(&mut self.last, text);
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.running.hang_up();
        self.running.limit(Some(TO_LEAVE));
        loop {
            match self.running.next(None) {
                Ok(Event::Line(_, line)) => self.heard(&line),
                Ok(Event::Ended(_)) | Err(_) => return,
                Ok(Event::Silent(_) | Event::Waited) => {}
            }
        }
    }
}

/// Those of `files` that are there, below the root of `environment`, in this order.
pub(super) fn present(environment: &Environment, files: &[&str]) -> Vec<PathBuf> {
    files.iter().map(|f| environment.paths().at(f)).filter(|f| f.is_file()).collect()
}
