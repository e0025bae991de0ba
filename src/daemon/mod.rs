//! The D-Bus service `io.balena.Copal1`.
//!
//! The service writes nothing to the device. It starts jobs for its callers, and shows every job, whether it or a client has started it.

mod apart;
mod core;
mod dbus_error;
mod job_object;
mod manager;
mod options;
mod root_only;
mod service;
mod shared_work;
mod signals;
mod slot_object;
mod snapshot;

pub use service::{ServiceOptions, run};

use crate::job::record::OBJECT_PATH;

const BUS_NAME: &str = "io.balena.Copal1";
const MANAGER_INTERFACE: &str = "io.balena.Copal1.Manager";
const JOB_INTERFACE: &str = "io.balena.Copal1.Job";
const SLOT_INTERFACE: &str = "io.balena.Copal1.Slot";
/// Followed by the error code in CamelCase.
const ERROR_PREFIX: &str = "io.balena.Copal1.Error.";
