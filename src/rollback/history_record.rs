//! What the history is told. Beside the work: no verdict waits for it, until the device reboots.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use super::Context;
use super::trial::Tried;
use crate::error::Error;
use crate::slot::Slot;
use crate::slot::hostapp;
use crate::state::files::Trial;
use crate::state::history::{self, Event, Failure, LINES, Record, Side, Why};
use crate::state::phase::{Observation, Phase};

/// For the journal to be read, and the record to be written: each has a limit of its own, and this is more than both.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A story that is being written.
pub(super) struct PendingRecord(Option<Receiver<()>>);

impl PendingRecord {
    /// There is nothing to tell.
    pub(super) const fn nothing() -> PendingRecord {
        PendingRecord(None)
    }

    /// Waits until it is written, or for long enough.
    pub(super) fn finish(self) {
        if self.0.is_some_and(|waiting| waiting.recv_timeout(TIMEOUT).is_err()) {
            tracing::warn!("the history of this update may lack its last record");
        }
    }
}

impl Context<'_> {
    /// A record about the system in `from`, which the device leaves or keeps for that in `to`.
    pub(super) fn record(&self, event: Event, transaction: &str, from: Slot, to: Slot) -> Record {
        let mut record = Record::new(transaction, event);
        record.from = Some(self.side(from));
        record.to = Some(self.side(to));
        record.resets = Trial::read(self.paths)
            .ok()
            .flatten()
            .filter(|t| t.transaction == transaction)
            .map_or(0, |t| t.resets);
        record
    }

    fn side(&self, slot: Slot) -> Side {
        let place = if slot == self.running().slot { self.paths.active() } else { self.paths.inactive() };
        Side { slot, version: hostapp::os_release(&place).and_then(|r| r.version().map(str::to_owned)) }
    }

    pub(super) fn version_of(&self, slot: Slot) -> Option<String> {
        self.side(slot).version
    }

    /// Whether the history has this about an update.
    pub(super) fn is_told(&self, event: Event, transaction: &str) -> bool {
        history::read(self.paths).iter().any(|r| r.event == event && r.transaction == transaction)
    }

    /// Writes it beside the work, with the last lines of this boot's journal if they tell what failed.
    pub(super) fn tell(&self, mut record: Record, with_journal: bool) -> PendingRecord {
        let (done, waiting) = mpsc::channel();
        let paths = self.paths.clone();
        let work = move || {
            if with_journal {
                record.journal = history::journal_of_this_boot(&paths, LINES);
            }
            history::append(&paths, &record);
            // Nobody waits any more, if it is late.
            let _late = done.send(());
        };
        if let Err(e) = thread::Builder::new().name("history".to_owned()).spawn(work) {
            tracing::warn!("the history of this update lacks a record: {e}");
        }
        PendingRecord(Some(waiting))
    }
}

/// What the bootloader had counted, and where the device stood.
pub(super) fn seen(record: &mut Record, seen: &Observation) {
    record.bootcount = seen.state.bootcount;
    record.phase = Some(seen.phase.as_str().to_owned());
}

/// What the trial has shown.
pub(super) fn tried(record: &mut Record, tried: &Tried) {
    record.why = Some(Why::Checks);
    record.attempts = tried.attempts;
    record.checks = tried.told();
    record.phase = Some(Phase::Trial.as_str().to_owned());
}

/// Why something failed.
pub(super) fn failed(record: &mut Record, e: &Error) {
    record.error = Some(Failure::from(e));
}
