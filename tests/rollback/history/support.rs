//! A state partition in a folder, records, and what is told to the log.

use std::fs;
use std::path::PathBuf;

use copal::config::paths::Paths;
use copal::error::{Code, Error};
use copal::slot::Slot;
use copal::state::history::{Check, CheckResult, Event, Hook, Record, Side};

use crate::kit::log::{self, Line};

pub struct Device {
    dir: tempfile::TempDir,
}

impl Device {
    pub fn new() -> Device {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("mnt/state")).unwrap();
        Device { dir }
    }

    pub fn paths(&self) -> Paths {
        Paths::new(self.dir.path())
    }

    pub fn file(&self) -> PathBuf {
        self.paths().at("/mnt/state/copal/history.jsonl")
    }

    pub fn put(&self, bytes: &[u8]) {
        fs::create_dir_all(self.file().parent().unwrap()).unwrap();
        fs::write(self.file(), bytes).unwrap();
    }
}

/// The `n`th record of a long story.
pub fn small(n: usize) -> Record {
    Record { time: format!("time {n}"), ..Record::new(format!("transaction {n}"), Event::Installed) }
}

/// A rollback with all that can be told of it.
pub fn rollback(n: usize) -> Record {
    Record {
        image: None,
        from: Some(Side { slot: Slot::B, version: Some("6.0.0".into()) }),
        to: Some(Side { slot: Slot::A, version: Some("5.3.1".into()) }),
        phase: Some("trial".into()),
        bootcount: 1,
        resets: 2,
        attempts: 15,
        checks: vec![
            Check {
                name: "vpn".into(),
                required: true,
                result: CheckResult::Passed,
                reason: String::new(),
                seconds: 0.25,
            },
            Check {
                name: "engine".into(),
                required: true,
                result: CheckResult::Failed,
                reason: "balena-healthcheck ended with status 1".into(),
                seconds: 12.5,
            },
        ],
        hooks: vec![
            Hook { name: "old-system".into(), status: Some(1) },
            Hook { name: "forward".into(), status: None },
        ],
        error: Some(Error::new(Code::HookFailed, "cannot run the hooks")),
        journal: (0..200).map(|i| format!("2026-11-21T16:00:00+0000 b engine[{i}]: no space left")).collect(),
        time: format!("time {n}"),
        ..Record::new(format!("transaction {n}"), Event::RolledBack)
    }
}

pub fn times(records: &[Record]) -> Vec<String> {
    records.iter().map(|r| r.time.clone()).collect()
}

/// What `work` logs.
pub fn logged(work: impl FnOnce()) -> Vec<Line> {
    log::lines(work).1
}

/// The record that the journal got in the place of the file.
#[track_caller]
pub fn told_to_the_journal(said: &[Line]) -> Record {
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].field("MESSAGE_ID"), copal::sys::log::events::HISTORY_UNWRITTEN);
    assert!(said[0].field("COPAL_FILE").ends_with("/mnt/state/copal/history.jsonl"), "{said:?}");
    Record::of_line(said[0].field("COPAL_HISTORY").as_bytes()).expect("a record in COPAL_HISTORY")
}
