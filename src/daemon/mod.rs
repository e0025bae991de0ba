//! The D-Bus service `io.balena.Copal1`.
//!
//! The service itself writes nothing to the device. Each job is a child process: the same program, called with a command line. It
//! depends neither on the client nor on the service nor on the bus: it reports to a file, which a restarted service reads.

mod callers;
pub mod client;
mod core;
mod dbus_error;
mod job;
mod job_process;
mod job_state;
mod manager;
mod output;
mod record;
mod request;
mod service;
mod shared_work;
mod signals;
mod slot;
mod snapshot;
mod socket;

pub use service::{Options, run};

pub const NAME: &str = "io.balena.Copal1";
pub const MANAGER: &str = "/io/balena/Copal1";
pub(crate) const MANAGER_INTERFACE: &str = "io.balena.Copal1.Manager";
pub const JOB_INTERFACE: &str = "io.balena.Copal1.Job";
pub(crate) const SLOT_INTERFACE: &str = "io.balena.Copal1.Slot";
/// Followed by the error code in CamelCase.
pub(crate) const ERROR_PREFIX: &str = "io.balena.Copal1.Error.";

/// Set in a job's process, which must not hand its work over again. The value is the program name of the request.
pub(crate) const IN_DAEMON: &str = "COPAL_IN_DAEMON";

#[must_use]
pub(crate) fn job_path(id: u32) -> String {
    format!("{MANAGER}/job/{id}")
}
