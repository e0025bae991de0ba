//! What became of each update, and why: `/mnt/state/copal/history.jsonl`, one record a line.
//!
//! The history is a witness, never a party: nothing here returns an error, waits for longer than was agreed, or is needed by any
//! verdict. What the state partition does not take goes to the journal.

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

pub use journal::{LINES, journal_of_this_boot};
pub use record::{Check, CheckResult, Event, Failure, Hook, Record, Side, VERSION, Why};
pub use store::{FILE_LIMIT, LINE_LIMIT, RECORDS};

/// For the state partition to take what it is given. One that takes longer hangs, or is worn out.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes room for the records of one update: drops the oldest, and allocates what the next will need, so that a full state
/// partition does not cost the story of a rollback. Where that fails, the update goes on.
pub fn prepare(paths: &Paths) {
    let own = paths.clone();
    if let Err(e) = within(TIMEOUT, move || store::prepare(&own)) {
        tracing::warn!(
            "cannot make room in {} for what becomes of the update: {e}",
            store::path(paths).display()
        );
    }
}

/// Adds a record, on the medium when this returns. One attempt of bounded time; what fails is told to the journal, with the
/// record.
pub fn append(paths: &Paths, record: &Record) {
    let (own, line) = (paths.clone(), record.line());
    if let Err(e) = within(TIMEOUT, move || store::append(&own, &line)) {
        // The lines of the journal are there already.
        let record = Record { journal: Vec::new(), ..record.clone() };
        tracing::warn!(
            MESSAGE_ID = events::HISTORY_UNWRITTEN,
            COPAL_HISTORY = record.line().trim_end(),
            COPAL_FILE = store::path(paths).display().to_string(),
            "cannot add to {} what became of an update, which the journal has instead: {e}",
            store::path(paths).display()
        );
    }
}

/// The records, newest last. What is damaged is passed over; nothing where the file cannot be read.
#[must_use]
pub fn read(paths: &Paths) -> Vec<Record> {
    store::lines(paths).unwrap_or_default().iter().filter_map(|line| Record::of_line(line)).collect()
}

/// Does `work` beside this thread. After `timeout` it is left behind: it ends with the process, or when the kernel lets it.
fn within(timeout: Duration, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (done, waiting) = mpsc::channel();
    thread::Builder::new().name("history".to_owned()).spawn(move || drop(done.send(work())))?;
    waiting.recv_timeout(timeout).unwrap_or_else(|e| {
        let why = match e {
            mpsc::RecvTimeoutError::Timeout => format!("it takes longer than {} s", timeout.as_secs()),
            mpsc::RecvTimeoutError::Disconnected => "it was given up".to_owned(),
        };
        Err(io::Error::new(io::ErrorKind::TimedOut, why))
    })
}
