//! What a later service must know of the last job. It lies in `/run`, as long as the system runs.

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

/// Most bytes of it: it has a line of the job's output.
const LARGEST: u64 = 4 * LONGEST as u64;

/// The last job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    /// Its number; the next one has the next.
    pub id: u32,
    pub kind: JobKind,
    /// By which its client knows it.
    #[serde(default)]
    pub token: Option<String>,
    /// It ends with a reboot.
    pub reboot: bool,
    /// Its process.
    pub process: Mark,
    /// Somebody has cancelled it.
    pub cancelled: bool,
    /// How it ended, once it has.
    pub over: Option<JobState>,
}

impl Record {
    /// `None` where there was no job yet, or where what is there is none.
    pub(super) fn read(paths: &Paths) -> Option<Record> {
        let path = paths.run_files().join(FILE);
        let text = match file::read_text(&path, LARGEST) {
            Ok(text) => text,
            Err(e) => {
                if e.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("the last job is not known: {}: {e}", path.display());
                }
                return None;
            }
        };
        serde_json::from_str(&text)
            .inspect_err(|e| tracing::warn!("the last job is not known: {}: {e}", path.display()))
            .ok()
    }

    /// Without it the job goes on all the same, but no later service knows of it.
    pub(super) fn write(&self, paths: &Paths) {
        let write = || {
            let text = serde_json::to_vec(self)?;
            let folder = Folder::open(&paths.run_files())?;
            file::replace(&folder, OsStr::new(FILE), &Content::BytesAs(&text, 0o600))
        };
        if let Err(e) = write() {
            tracing::warn!("a service that is started again will not know of job {}: {e}", self.id);
        }
    }

    /// What its process reports to.
    pub(super) fn output(&self, paths: &Paths) -> PathBuf {
        output(paths, self.id)
    }
}

/// What the process of job `id` reports to.
pub(super) fn output(paths: &Paths, id: u32) -> PathBuf {
    paths.run_files().join(format!("job-{id}.jsonl"))
}

/// Where the registry credentials that a client has handed over lie while job `id` runs.
pub(super) fn credentials(paths: &Paths, id: u32) -> PathBuf {
    paths.run_files().join(format!("job-{id}.auth"))
}

/// Removes what job `id` has left; `all`: what its process said, too.
pub(super) fn clean(paths: &Paths, id: u32, all: bool) {
    let gone = |result: io::Result<()>| match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => tracing::warn!("left of job {id}: {e}"),
        _ => {}
    };
    gone(std::fs::remove_dir_all(credentials(paths, id)));
    if all {
        gone(std::fs::remove_file(output(paths, id)));
    }
}
