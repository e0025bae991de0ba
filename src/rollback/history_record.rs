//! Writes history records beside the work: only the reboot waits for them.

use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use super::Context;
use super::health_results::HealthResults;
use crate::error::Error;
use crate::slot::Slot;
use crate::slot::hostapp;
use crate::state::files::Trial;
use crate::state::history::{self, Event, JOURNAL_LINES, Record, Side, Why};
use crate::state::phase::Observation;

/// Reading the journal and writing the record have limits of their own; this is more than both.
const RECORD_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct PendingRecord(Option<Receiver<()>>);

impl PendingRecord {
    pub(super) const fn nothing() -> PendingRecord {
        PendingRecord(None)
    }

    pub(super) fn finish(self) {
        if self.0.is_some_and(|waiting| waiting.recv_timeout(RECORD_TIMEOUT).is_err()) {
            tracing::warn!("the history of this update may lack its last record");
        }
    }
}

impl Context<'_> {
    /// `from`: the system that the record is about; `to`: the system that the device keeps or boots.
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

    pub(super) fn is_recorded(&self, event: Event, transaction: &str) -> bool {
        history::read(self.paths).iter().any(|r| r.event == event && r.transaction == transaction)
    }

    /// `with_journal`: adds the last journal lines of this boot, which show what failed.
    pub(super) fn add_record(&self, mut record: Record, with_journal: bool) -> PendingRecord {
        let (done, waiting) = mpsc::channel();
        let paths = self.paths.clone();
        let work = move || {
            if with_journal {
                record.journal = history::journal_of_this_boot(&paths, JOURNAL_LINES);
            }
            history::append(&paths, &record);
            let _late = done.send(());
        };
        if let Err(e) = thread::Builder::new().name("history".to_owned()).spawn(work) {
            tracing::warn!("the history of this update lacks a record: {e}");
        }
        PendingRecord(Some(waiting))
    }
}

pub(super) fn observed(record: &mut Record, observed: &Observation) {
    record.bootcount = observed.state.bootcount;
    record.phase = Some(observed.phase.as_str().to_owned());
}

pub(super) fn checked(record: &mut Record, results: &HealthResults) {
    record.why = Some(Why::Checks);
    record.attempts = results.attempts;
    record.checks = results.summary();
}

pub(super) fn failed(record: &mut Record, e: &Error) {
    record.error = Some(e.clone());
}
