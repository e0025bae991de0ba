use std::cell::RefCell;

use super::Installed;
use crate::config::paths::Paths;
use crate::device_tree::Carried;
use crate::error::Result;
use crate::job::Source;
use crate::slot::hostapp;
use crate::state::history::{self, Event, Hook, Record, Side};
use crate::sys::command::End;
use crate::update::preflight::Device;

#[derive(Debug, Default)]
pub(super) struct HistoryRecord {
    hooks: RefCell<Vec<Hook>>,
    release: RefCell<Option<String>>,
    carried: RefCell<Vec<Carried>>,
}

impl HistoryRecord {
    pub(super) fn hooks_ended(&self, name: &str, end: End) {
        let status = match end {
            End::Status(status) => Some(status),
            End::Signal(_) | End::TooLong(_) => None,
        };
        self.hooks.borrow_mut().push(Hook { name: name.to_owned(), status });
    }

    pub(super) fn carried(&self, files: Vec<Carried>) {
        *self.carried.borrow_mut() = files;
    }

    /// From now on the other slot holds the new release, and nothing of the earlier one.
    pub(super) fn slot_is_filled(&self, paths: &Paths) {
        *self.release.borrow_mut() = hostapp::version(&paths.inactive());
    }

    pub(super) fn add_record(
        &self,
        source: &Source,
        paths: &Paths,
        device: &Device,
        transaction: &str,
        end: &Result<Installed>,
    ) {
        let event = if end.is_ok() { Event::Installed } else { Event::UpdateFailed };
        let record = Record {
            image: Some(source.to_string()),
            from: Some(Side { slot: device.roots.active.slot, version: hostapp::running_version(paths) }),
            to: Some(Side { slot: device.target.slot, version: self.release.take() }),
            phase: Some(device.phase.to_string()),
            hooks: self.hooks.take(),
            carried: self.carried.take(),
            error: end.as_ref().err().cloned(),
            ..Record::new(transaction, event)
        };
        history::append(paths, &record);
    }
}
