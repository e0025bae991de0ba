//! History of updates and rollbacks: `/mnt/state/copal/history.jsonl`, one record a line.
//!
//! No verdict depends on the history: nothing here returns an error or waits longer than a fixed time. A record that cannot be
//! written goes to the journal.

pub mod announce;
mod journal;
mod record;
mod store;

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::config::paths::Paths;
use crate::sys::log::events;

pub use crate::device_tree::Carried;
pub use journal::{JOURNAL_LINES, journal_of_this_boot};
pub use record::{Check, CheckResult, Event, Hook, LINE_LIMIT, Record, Side, VERSION, Why};
pub(super) use store::FILE_NAME;
pub use store::{FILE_LIMIT, MAX_RECORDS};

/// A state partition that takes longer hangs, or is worn out.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes space for the records of one update: drops the oldest, and allocates what the next will need, so that a full state partition
/// does not cost the record of a rollback. Where that fails, the update goes on.
pub fn prepare(paths: &Paths) {
    let own = paths.clone();
    if let Err(e) = within(WRITE_TIMEOUT, move || store::prepare(&own)) {
        tracing::warn!(
            "cannot allocate space in {} for the records of this update: {e}",
            store::path(paths).display()
        );
    }
}

/// Adds a record; it is on the medium on return. One attempt of bounded time; where it fails, the journal gets the record.
pub fn append(paths: &Paths, record: &Record) {
    let (own, line) = (paths.clone(), record.line());
    if let Err(e) = within(WRITE_TIMEOUT, move || store::append(&own, &line)) {
        let record = Record { journal: Vec::new(), ..record.clone() };
        tracing::warn!(
            MESSAGE_ID = events::HISTORY_UNWRITTEN,
            COPAL_HISTORY = record.line().trim_end(),
            COPAL_FILE = store::path(paths).display().to_string(),
            "cannot add a record to {}, so the journal has it: {e}",
            store::path(paths).display()
        );
    }
}

/// Newest last. Damaged records are skipped; empty where the file cannot be read.
#[must_use]
pub fn read(paths: &Paths) -> Vec<Record> {
    let lines = store::lines(paths).unwrap_or_default();
    lines.iter().filter_map(|line| Record::of_line(line)).collect()
}

/// Whether [`read`] is empty because only root may read the file.
pub(crate) fn needs_root(paths: &Paths) -> bool {
    store::lines(paths).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied)
}

/// Runs `work` in another thread. After `timeout` that thread is left alone: it ends with the process, or when the kernel lets it.
fn within(timeout: Duration, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (done, waiting) = mpsc::channel();
    thread::Builder::new().name("history".to_owned()).spawn(move || drop(done.send(work())))?;
    waiting.recv_timeout(timeout).unwrap_or_else(|e| {
        let why = match e {
            mpsc::RecvTimeoutError::Timeout => format!("it takes longer than {} s", timeout.as_secs()),
            mpsc::RecvTimeoutError::Disconnected => "the thread has died".to_owned(),
        };
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}
