//! A bash that keeps running, for shell functions of the board that share variables.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::Level;

use super::board::Environment;
use crate::sys::command::{self, Command, End, Event, Running, Stream};

const DRIVER: &str = include_str!("shell.sh");

/// `$0` of the shell files: the program that used to source them.
const SHELL_NAME: &str = "resin-init-flasher";

/// For EXIT traps, which may unmount or wipe.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Status(i32),
    /// The shell ended: how, and its last lines.
    Gone(End, String),
}

/// A bash. On drop it gets time to exit.
pub(super) struct Shell {
    running: Running,
    name: &'static str,
    last: String,
    /// The answer to `get`.
    value: Option<String>,
}

impl Shell {
    /// Starts a bash that has read no file; `None` without bash.
    pub(super) fn start(
        name: &'static str,
        environment: &Environment,
        more: &[(&str, &str)],
        silence: Duration,
    ) -> io::Result<Option<Self>> {
        let Some(bash) = command::bash() else { return Ok(None) };
        let mut command = Command::new(bash)
            .args(["--noprofile", "--norc", "-c", DRIVER, SHELL_NAME])
            .envs(environment.variables())
            .envs(more.iter().copied())
            .apart()
            .with_input()
            .silence(silence)
            .without_own_variables();
        for variable in ["BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS"] {
            command = command.without(variable);
        }
        Ok(Some(Shell { running: command.start()?, name, last: String::new(), value: None }))
    }

    /// As `.` does.
    pub(super) fn source(&mut self, file: &Path) -> io::Result<Answer> {
        // One line is one request.
        match file.to_str().filter(|f| !f.contains('\n')) {
            Some(file) => self.ask(&format!("source {file}")),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "its name is not one line of text")),
        }
    }

    pub(super) fn has(&mut self, function: &str) -> io::Result<Answer> {
        self.ask(&format!("has {function}"))
    }

    /// Calls a function, in a condition: `set -e` is off in it.
    pub(super) fn call(&mut self, function: &str, arguments: &[&OsStr]) -> io::Result<Answer> {
        for (i, argument) in arguments.iter().enumerate() {
            let set = self.set(&format!("__copal_arguments[{i}]"), argument)?;
            if set != Answer::Status(0) {
                return Ok(set);
            }
        }
        self.ask(&format!("call {function}"))
    }

    /// Sets a variable of the shell, exported only if it was before.
    pub(super) fn set(&mut self, name: &str, value: &OsStr) -> io::Result<Answer> {
        let escaped: String = value.as_bytes().iter().map(|byte| format!("\\x{byte:02x}")).collect();
        self.ask(&format!("set {name} {escaped}"))
    }

    /// The value of a variable, as far as it is text; `None` if it is unset.
    pub(super) fn get(&mut self, name: &str) -> io::Result<(Answer, Option<String>)> {
        self.value = None;
        let answer = self.ask(&format!("get {name}"))?;
        Ok((answer, self.value.take()))
    }

    /// Ends it after this time, counted from now.
    pub(super) fn limit(&mut self, limit: Option<Duration>) {
        self.running.limit(limit);
    }

    fn ask(&mut self, request: &str) -> io::Result<Answer> {
        self.running.listen();
        self.last.clear();
        if let Err(e) = self.running.say(request) {
            tracing::debug!("{}: {request}: {e}", self.name);
        }
        loop {
            match self.running.next(None)? {
                Event::Line(Stream::Out, line) => {
                    if let Ok(status) = line.parse() {
                        self.drain()?;
                        return Ok(Answer::Status(status));
                    }
                    match line.strip_prefix('=') {
                        Some(value) => self.value = Some(unescaped(value)),
                        None => self.log_line(&line),
                    }
                }
                Event::Line(Stream::Err, line) => self.log_line(&line),
                Event::Silent(time) => command::warn_of_silence(self.name, time),
                Event::Ended(end) => return Ok(Answer::Gone(end, std::mem::take(&mut self.last))),
                Event::Waited => {}
            }
        }
    }

    /// Output from before the answer is logged before it.
    fn drain(&mut self) -> io::Result<()> {
        while let Event::Line(_, line) = self.running.next(Some(Instant::now()))? {
            self.log_line(&line);
        }
        Ok(())
    }

    fn log_line(&mut self, line: &str) {
        let (level, text) = command::level_and_text(line);
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
        self.running.limit(Some(EXIT_TIMEOUT));
        loop {
            match self.running.next(None) {
                Ok(Event::Line(_, line)) => self.log_line(&line),
                Ok(Event::Ended(_)) | Err(_) => return,
                Ok(Event::Silent(_) | Event::Waited) => {}
            }
        }
    }
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, if c == '\\' { rest.next() } else { None }) {
            (_, Some('n')) => out.push('\n'),
            (_, Some('r')) => out.push('\r'),
            (_, Some(other)) => out.push(other),
            (c, None) => out.push(c),
        }
    }
    out
}

/// The `files` that exist below the root of `environment`, in this order.
pub(super) fn present(environment: &Environment, files: &[&str]) -> Vec<PathBuf> {
    files.iter().map(|f| environment.paths().at(f)).filter(|f| f.is_file()).collect()
}
