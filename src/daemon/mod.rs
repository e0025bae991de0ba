//! The D-Bus service `io.balena.Copal1`.
//!
//! The service itself writes nothing to the device. Each job is a child process, the same program called as on a command
//! line, which depends neither on the client nor on the service nor on the bus: it reports to a file, and a service that
//! is started again finds it there.

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

/// The service's name on the system bus.
pub const NAME: &str = "io.balena.Copal1";
/// The manager's object; all others are below it.
pub const MANAGER: &str = "/io/balena/Copal1";
/// The manager's interface.
pub const MANAGER_INTERFACE: &str = "io.balena.Copal1.Manager";
/// The interface of a job.
pub const JOB_INTERFACE: &str = "io.balena.Copal1.Job";
/// The interface of a slot.
pub const SLOT_INTERFACE: &str = "io.balena.Copal1.Slot";
/// What stands before the code, in CamelCase, in the D-Bus name of an error.
pub const ERROR_PREFIX: &str = "io.balena.Copal1.Error.";

/// Set in the process of a job: it is not to be handed over once more. Its value is the name that the job was asked by.
pub const IN_DAEMON: &str = "COPAL_IN_DAEMON";

/// The object of a job.
#[must_use]
pub fn job_path(id: u32) -> String {
    format!("{MANAGER}/job/{id}")
}
