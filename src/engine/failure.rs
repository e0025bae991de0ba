//! Failed calls to the engine, and their error codes.

use std::error::Error as StdError;
use std::time::Duration;

use bollard::errors::Error as Bollard;
use nix::sys::signal::Signal;

use crate::error::{Code, Error};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// No connection, or it broke.
    Lost,
    Silent,
    /// The engine is alive, but waits for the registry.
    Stalled,
    Refused(u16),
    /// In a stream that began well.
    Reported,
    /// An answer that copal cannot parse.
    Garbled,
    /// A signal to this program.
    Interrupted,
}

/// Not an [`Error`] yet: the meaning of the text depends on the call.
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
        Failure { why: Why::Interrupted, text: format!("{signal} ends the program") }
    }

    pub(super) fn garbled(text: impl Into<String>) -> Failure {
        Failure { why: Why::Garbled, text: text.into() }
    }

    /// `what`: the step that failed.
    pub(super) fn during(self, what: &str) -> Error {
        self.coded(Code::EngineFailed, what)
    }

    /// Under `code`, unless the connection failed, the disk is full, or a signal ended the call.
    pub(super) fn coded(self, code: Code, what: &str) -> Error {
        let code = match self.why {
            Why::Lost | Why::Silent => Code::EngineUnreachable,
            Why::Interrupted => Code::Interrupted,
            _ if self.is_full() => Code::SlotFull,
            _ => code,
        };
        Error::new(code, what).because(self.text)
    }

    /// For a load or a pull. A stop of the engine's service first kills the programs that unpack: the engine reports that, then it exits.
    pub(super) fn of_transfer(self) -> Failure {
        // The text of Go's os/exec (`ExitError`), which moby puts after `ApplyLayer` (pkg/chrootarchive/diff_unix.go).
        let ended = ["signal: terminated", "signal: killed"].iter().any(|end| self.text.contains(end));
        match self.why {
            Why::Reported | Why::Refused(_) if ended => Failure { why: Why::Lost, ..self },
            _ => self,
        }
    }

    /// ENOSPC and EDQUOT in the words of Go's `syscall` package.
    pub(super) fn is_full(&self) -> bool {
        let text = self.text.to_ascii_lowercase();
        text.contains("no space left on device") || text.contains("disk quota exceeded")
    }

    /// Whether the engine lacks the base image of a delta, for which it looks by its ID (moby, `image/fs.go`; balenaEngine, `distribution/pull_v2.go` and
    /// `image/tarexport/load.go`).
    pub(super) fn lacks_base(&self) -> bool {
        self.text.contains("failed to get digest sha256:") && self.text.contains("no such file or directory")
    }

    /// Whether the answer is complete except for a trailing fragment without a message: bollard 0.21 keeps the `\r` of the last line if it arrives alone.
    pub(super) fn is_loose_end(&self) -> bool {
        self.text == "bytes remaining on stream"
    }

    /// Whether the engine reports that the object does not exist.
    pub(super) fn is_gone(&self) -> bool {
        self.why == Why::Refused(404)
    }
}

impl From<Bollard> for Failure {
    fn from(error: Bollard) -> Failure {
        let (why, text) = match error {
            Bollard::DockerResponseServerError { status_code, message } if message.trim().is_empty() => (
                Why::Refused(status_code),
                format!("it answers with HTTP status {status_code} without a message"),
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
                (Why::Garbled, format!("its answer cannot be parsed: {message}"))
            }
            other => (Why::Garbled, format!("its answer cannot be parsed: {}", root_cause(&other))),
        };
        Failure { why, text }
    }
}

/// The outer causes name only layers of the HTTP client.
fn root_cause(error: &dyn StdError) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
