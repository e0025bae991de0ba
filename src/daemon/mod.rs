//! The D-Bus service `io.balena.Copal1`.
//!
//! The service writes nothing to the device. Each job is a unit of systemd, which depends neither on its client nor on the service nor on
//! the bus: the service starts jobs for its callers, and shows every job, whether it or a client has started it.

mod apart;
mod callers;
pub mod client;
mod core;
mod dbus_error;
mod job;
mod job_state;
mod manager;
mod older;
mod output;
mod record;
mod request;
mod service;
mod shared_work;
mod signals;
mod slot;
mod snapshot;
mod socket;
mod start_lock;
mod unit;

pub use service::{Options, run};
pub(crate) use unit::{ended as job_ended, run as run_job};

const NAME: &str = "io.balena.Copal1";
const MANAGER: &str = "/io/balena/Copal1";
const MANAGER_INTERFACE: &str = "io.balena.Copal1.Manager";
const JOB_INTERFACE: &str = "io.balena.Copal1.Job";
const SLOT_INTERFACE: &str = "io.balena.Copal1.Slot";
/// Followed by the error code in CamelCase.
const ERROR_PREFIX: &str = "io.balena.Copal1.Error.";

/// Set in a job's process, which must not hand its work over again. The value is the program name of the request.
pub(crate) const IN_DAEMON: &str = "COPAL_IN_DAEMON";

fn job_path(id: u32) -> String {
    format!("{MANAGER}/job/{id}")
}
