//! The record of the last job for a later service. It is in `/run`, until the next boot.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::job_state::{JobKind, JobState};
use super::output::LONGEST;
use crate::config::paths::Paths;
use crate::sys::command::Mark;
use crate::sys::file::{self, Content, Folder};

const FILE: &str = "job.json";

/// In bytes: it has a line of the job's output.
const LARGEST: u64 = 4 * LONGEST as u64;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub id: u32,
    pub kind: JobKind,
    #[serde(default)]
    pub token: Option<String>,
    pub reboot: bool,
    pub process: Mark,
    pub cancelled: bool,
    /// How it ended; `None` while it runs.
    pub over: Option<JobState>,
}

impl Record {
    /// `None` where there was no job, or the record is damaged.
    pub(super) fn read(paths: &Paths) -> Option<Record> {
        let path = paths.run_files().join(FILE);
        let text = match file::read_text(&path, LARGEST) {
            Ok(text) => text,
            Err(e) => {
                if e.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("the last job is unknown: {}: {e}", path.display());
                }
                return None;
            }
        };
        serde_json::from_str(&text)
            .inspect_err(|e| tracing::warn!("the last job is unknown: {}: {e}", path.display()))
            .ok()
    }

    /// The job goes on without a record, but no later service knows it.
    pub(super) fn write(&self, paths: &Paths) {
        let write = || {
            let text = serde_json::to_vec(self)?;
            let folder = Folder::open(&paths.run_files())?;
            file::replace(&folder, OsStr::new(FILE), &Content::BytesAs(&text, 0o600))
        };
        if let Err(e) = write() {
            tracing::warn!("cannot record job {}, so a later service will not know it: {e}", self.id);
        }
    }

    pub(super) fn output(&self, paths: &Paths) -> PathBuf {
        output(paths, self.id)
    }
}

pub(super) fn output(paths: &Paths, id: u32) -> PathBuf {
    paths.run_files().join(format!("job-{id}.jsonl"))
}

/// Registry credentials of the client, while job `id` runs.
pub(super) fn credentials(paths: &Paths, id: u32) -> PathBuf {
    paths.run_files().join(format!("job-{id}.auth"))
}

pub(super) fn clean(paths: &Paths, id: u32, all: bool) {
    let gone = |result: io::Result<()>| match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove a file of job {id}: {e}");
        }
        _ => {}
    };
    gone(std::fs::remove_dir_all(credentials(paths, id)));
    if all {
        gone(std::fs::remove_file(output(paths, id)));
    }
}
