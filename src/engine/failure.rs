//! What went wrong with a call to the engine, and under which code it is shown.

use std::error::Error as StdError;
use std::time::Duration;

use bollard::errors::Error as Bollard;
use nix::sys::signal::Signal;

use crate::error::{Code, Error};

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// There is no connection to the engine, or it broke off.
    Lost,
    /// The engine neither answers nor ends the connection.
    Silent,
    /// The engine is alive, but what it does makes no progress: it waits for the registry.
    Stalled,
    /// The engine refused, with this HTTP status.
    Refused(u16),
    /// The engine reported a failure within a stream that had begun well.
    Reported,
    /// What the engine says makes no sense.
    Garbled,
    /// A signal asks this program to end.
    Interrupted,
}

/// One failed call: not an [`Error`] yet, since what its text means depends on what was asked for.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) why: Why,
    pub(super) text: String,
}

impl Failure {
    pub(super) fn silent(limit: Duration) -> Failure {
        Failure { why: Why::Silent, text: format!("it has not answered for {} s", limit.as_secs()) }
    }

    pub(super) fn stalled(limit: Duration) -> Failure {
        Failure {
            why: Why::Stalled,
            text: format!("nothing has come from the registry for {} s", limit.as_secs()),
        }
    }

    pub(super) fn unreachable(text: String) -> Failure {
        Failure { why: Why::Stalled, text }
    }

    pub(super) fn interrupted(signal: Signal) -> Failure {
        Failure { why: Why::Interrupted, text: format!("{signal} asks the program to end") }
    }

    pub(super) fn garbled(text: impl Into<String>) -> Failure {
        Failure { why: Why::Garbled, text: text.into() }
    }

    /// As shown, `what` being the step that failed.
    pub(super) fn during(self, what: &str) -> Error {
        self.coded(Code::EngineFailed, what)
    }

    /// As shown, under `code` unless the connection itself is what failed, the disk is full, or a signal ended the call.
    pub(super) fn coded(self, code: Code, what: &str) -> Error {
        let code = match self.why {
            Why::Lost | Why::Silent => Code::EngineUnreachable,
            Why::Interrupted => Code::Interrupted,
            _ if self.is_full() => Code::SlotFull,
            _ => code,
        };
        Error::new(code, what).because(self.text)
    }

    /// The failure of a load or a pull. Whoever stops the engine's service ends the programs that unpack for it first: the engine reports
    /// their end, and then goes away itself.
    pub(super) fn of_transfer(self) -> Failure {
        // As Go's os/exec names it (`ExitError`), which moby puts behind `ApplyLayer` (pkg/chrootarchive/diff_unix.go).
        let ended = ["signal: terminated", "signal: killed"].iter().any(|end| self.text.contains(end));
        match self.why {
            Why::Reported | Why::Refused(_) if ended => Failure { why: Why::Lost, ..self },
            _ => self,
        }
    }

    /// ENOSPC in the words of Go's `syscall` package, EDQUOT too.
    pub(super) fn is_full(&self) -> bool {
        let text = self.text.to_ascii_lowercase();
        text.contains("no space left on device") || text.contains("disk quota exceeded")
    }

    /// Whether the answer is complete but for a rest that is no message: the decoder of bollard 0.21 keeps the `\r` of the last
    /// line for one when it arrives by itself.
    pub(super) fn is_loose_end(&self) -> bool {
        self.text == "bytes remaining on stream"
    }

    /// Whether the engine says that there is no such thing.
    pub(super) fn is_gone(&self) -> bool {
        self.why == Why::Refused(404)
    }
}

impl From<Bollard> for Failure {
    fn from(error: Bollard) -> Failure {
        let (why, text) = match error {
            Bollard::DockerResponseServerError { status_code, message } if message.trim().is_empty() => (
                Why::Refused(status_code),
                format!("it answers with HTTP status {status_code} and says nothing"),
            ),
            Bollard::DockerResponseServerError { status_code, message } => {
                (Why::Refused(status_code), message.trim().to_owned())
            }
            Bollard::DockerStreamError { error } => (Why::Reported, error.trim().to_owned()),
            Bollard::RequestTimeoutError => (Why::Silent, "it does not answer".to_owned()),
            Bollard::SocketNotFoundError(_) => (Why::Lost, "there is no such socket".to_owned()),
            Bollard::HyperLegacyError { .. }
            | Bollard::HyperResponseError { .. }
            | Bollard::IOError { .. } => (Why::Lost, root_cause(&error)),
            Bollard::JsonDataError { message, .. } => {
                (Why::Garbled, format!("it says what cannot be understood: {message}"))
            }
            other => (Why::Garbled, format!("it says what cannot be understood: {}", root_cause(&other))),
        };
        Failure { why, text }
    }
}

/// The innermost cause: the outer ones name the layers of the HTTP client only.
fn root_cause(error: &dyn StdError) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
