//! What a verb prints: progress, results, and at the end its error.
//!
//! stdout carries results (text, or JSON lines with `--json`), stderr everything else. A reader of stdout that has
//! exited (`copal --list | head -1`) is not a failure. A stdout that takes no output (a full disk) is a failure: it is reported at the end,
//! and never stops a job.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use crate::error::{Code, Error, Result, exit};
use crate::job::Event;
use crate::progress::{self, Progress};
use crate::sys::log;

pub(super) struct Ui {
    json: bool,
    progress: progress::Shown,
    answered: Cell<bool>,
    failure: RefCell<Option<io::Error>>,
}

impl Ui {
    #[must_use]
    pub(super) fn new(json: bool) -> Self {
        let progress = if json { progress::for_programs() } else { progress::for_stderr() };
        Ui { json, progress, answered: Cell::new(false), failure: RefCell::new(None) }
    }

    #[must_use]
    pub(super) fn json(&self) -> bool {
        self.json
    }

    #[must_use]
    pub(super) fn progress(&self) -> &dyn Progress {
        &*self.progress
    }

    /// The same, for a caller that adds other sinks.
    #[must_use]
    pub(super) fn shown(&self) -> &progress::Shown {
        &self.progress
    }

    /// Text on stdout as it is, with `--json` too: for verbs whose output has a form of its own.
    pub(super) fn text(&self, text: &str) {
        self.answered.set(true);
        self.write(text);
    }

    /// The verb's result, once, at its end: `text` on stdout, a newline is added; or with `--json` the last line, with
    /// `value` under `key`.
    pub(super) fn result(&self, key: &str, value: &impl serde::Serialize, text: &str) {
        self.progress.close();
        self.answered.set(true);
        if !self.json {
            return self.write(&format!("{}\n", log::printable_lines(text)));
        }
        match serde_json::to_value(value) {
            Ok(value) => self.event(&Event::Result(Ok(Some((key.to_owned(), value))))),
            Err(e) => self.keep(e.into()),
        }
    }

    /// What to report before an error: `text` on stdout, or with `--json` a line of its own, with `value` under `name`.
    pub(super) fn finding(&self, name: &str, value: &impl serde::Serialize, text: &str) {
        self.progress.close();
        if !self.json {
            return self.write(&format!("{}\n", log::printable_lines(text)));
        }
        match serde_json::to_value(value) {
            Ok(value) => self.event(&Event::Finding(name.to_owned(), value)),
            Err(e) => self.keep(e.into()),
        }
    }

    #[must_use]
    pub(super) fn end(self, result: Result<()>) -> ExitCode {
        self.progress.close();
        match result {
            Ok(()) => {
                if self.json && !self.answered.get() {
                    self.event(&Event::Result(Ok(None)));
                }
                self.end_text()
            }
            Err(e) => {
                self.error(&e);
                ExitCode::from(exit::of_verb(&e))
            }
        }
    }

    /// For a verb that only printed text.
    #[must_use]
    pub(super) fn end_text(self) -> ExitCode {
        match self.failure.into_inner() {
            None => ExitCode::SUCCESS,
            Some(e) => {
                report(&no_output(e));
                ExitCode::from(exit::FAILURE)
            }
        }
    }

    /// Once: as the last JSON line; without `--json`, or where no process reads stdout, on stderr.
    fn error(&self, e: &Error) {
        if self.json && self.write_or(&Event::Result(Err(e.clone())).to_line()).is_ok() {
            log::last_in_journal(log::voice(), &e.to_string(), e.code().as_str());
        } else {
            report(e);
        }
    }

    fn event(&self, event: &Event) {
        self.write(&event.to_line());
    }

    fn write(&self, text: &str) {
        if let Err(e) = self.write_or(text)
            && e.kind() != ErrorKind::BrokenPipe
        {
            self.keep(e);
        }
    }

    fn write_or(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    fn keep(&self, e: io::Error) {
        self.failure.borrow_mut().get_or_insert(e);
    }
}

/// The output of a legacy name. A reader that has exited is not a failure.
pub(crate) fn answer(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(no_output(e)),
        _ => Ok(()),
    }
}

fn no_output(e: io::Error) -> Error {
    Error::new(Code::OutputFailed, "cannot write to stdout").object("stdout").because(e)
}

fn report(e: &Error) {
    log::last(log::voice(), &e.to_string(), e.code().as_str());
}
