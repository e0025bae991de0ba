//! A job: an update, a flash, a rollback or a commit that a process of its own does.
//!
//! A [`Spec`] says what is to be done, an [`Event`] what the process reports, a [`Report`] how it has ended, a [`State`] how far it is. Client,
//! process, service and terminal use these types as they are.
//!
//! A job is a unit of systemd, an instance of `copal-job@.service`. The caller writes a [`JobRequest`] to a file and starts the unit. The
//! unit's process takes the request, reports to a second file, and the unit leaves its end in a third one. So the job depends on no client,
//! no service and no bus, and each of them can follow it. All files are in `/run/copal`, for root only: every user can read the properties
//! of a unit.

mod environment;
mod event;
mod files;
mod follow;
pub mod lock;
mod output;
mod process;
pub(crate) mod record;
mod request;
mod spec;
pub(crate) mod start_lock;
mod state;
mod unit;

pub(crate) use environment::{CREDENTIALS_VARIABLE, DEFAULT_PATH};
pub use event::{Edge, Event, Report, Stage, StageProgress};
pub(crate) use files::JobFiles;
pub(crate) use follow::Job;
pub(crate) use output::Output;
pub(crate) use process::{become_job, record_end, take_spec};
pub(crate) use request::JobRequest;
pub use spec::{FlashSpec, Source, Spec, UpdateSpec};
pub(crate) use state::{JobStatus, State};
pub(crate) use unit::NotStarted;
