//! The files of one job, in `/run/copal`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::JobRequest;
use super::output;
use crate::config::paths::Paths;
use crate::sys::command::End;
use crate::sys::file;

/// Limit of each file that is read at once.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

/// How the unit ended. Both fields are empty if it never started.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct EndRecord {
    pub status: Option<i32>,
    pub signal: Option<i32>,
}

impl EndRecord {
    fn end(&self) -> Option<End> {
        self.status.map(End::Status).or(self.signal.map(End::Signal))
    }
}

#[derive(Debug, Clone)]
pub(crate) struct JobFiles {
    pub(super) folder: PathBuf,
    /// The number of the job, or the name of a plan.
    pub(super) instance: String,
}

impl JobFiles {
    pub(crate) fn new(paths: &Paths, instance: &impl ToString) -> JobFiles {
        JobFiles { folder: paths.run_files(), instance: instance.to_string() }
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.folder.join(format!("job-{}.{kind}", self.instance))
    }

    pub(super) fn request(&self) -> PathBuf {
        self.path("request")
    }

    /// The request after the job's process has taken it.
    pub(super) fn taken(&self) -> PathBuf {
        self.path("taken")
    }

    /// A configuration folder of the engine's client.
    pub(super) fn credentials(&self) -> PathBuf {
        self.path("auth")
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.path("jsonl")
    }

    pub(super) fn end_record(&self) -> PathBuf {
        self.path("end")
    }

    pub(crate) fn unit(&self) -> String {
        format!("copal-job@{}.service", self.instance)
    }

    /// `None` while the job runs or waits for its start.
    pub(crate) fn end(&self) -> Option<Option<End>> {
        let text = match file::read_record(&self.end_record(), MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("the end of job {} is unknown: {e}", self.instance);
                return Some(None);
            }
        };
        Some(serde_json::from_str(&text).ok().and_then(|end: EndRecord| end.end()))
    }

    /// Keeps an existing record: the first end counts.
    pub(super) fn write_end(&self, end: &EndRecord) -> io::Result<()> {
        match private_file(&self.folder, &serde_json::to_vec(end)?)?.persist_noclobber(self.end_record()) {
            Err(e) if e.error.kind() != io::ErrorKind::AlreadyExists => Err(e.error),
            _ => Ok(()),
        }
    }

    pub(super) fn write(&self, request: &JobRequest) -> io::Result<()> {
        output::make(&self.output())?;
        if let Some(text) = &request.credentials {
            let folder = self.credentials();
            DirBuilder::new().mode(0o700).create(&folder)?;
            create_private(&folder.join("config.json"))?.write_all(text.as_bytes())?;
        }
        create_private(&self.request())?.write_all(&serde_json::to_vec(request)?)
    }

    /// Returns whether the request was removed before the job took it. Then the job never begins.
    pub(super) fn withdraw(&self) -> bool {
        let withdrawn = fs::remove_file(self.request()).is_ok();
        if withdrawn {
            self.forget_secrets();
        }
        withdrawn
    }

    pub(super) fn forget_secrets(&self) {
        self.warn_unless_gone(fs::remove_file(self.request()));
        self.warn_unless_gone(fs::remove_file(self.taken()));
        self.warn_unless_gone(fs::remove_dir_all(self.credentials()));
    }

    pub(crate) fn remove(&self) {
        self.forget_secrets();
        self.warn_unless_gone(fs::remove_file(self.output()));
        self.warn_unless_gone(fs::remove_file(self.end_record()));
    }

    pub(super) fn warn_unless_gone(&self, removed: io::Result<()>) {
        match removed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot remove a file of job {}: {e}", self.instance);
            }
            _ => {}
        }
    }
}

/// Removes the files of jobs with a lower number than `id`.
pub(super) fn remove_older(paths: &Paths, id: u32) {
    let entries = match fs::read_dir(paths.run_files()) {
        Ok(entries) => entries,
        Err(e) => {
            if e.kind() != io::ErrorKind::NotFound {
                tracing::debug!("files of older jobs stay: {e}");
            }
            return;
        }
    };
    for name in entries.flatten().map(|entry| entry.file_name()) {
        let number =
            name.to_str().and_then(|name| name.strip_prefix("job-")?.split_once('.')?.0.parse().ok());
        if let Some(older) = number.filter(|n: &u32| *n < id) {
            JobFiles::new(paths, &older).remove();
        }
    }
}

fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// A file for root without its final name, so that no process reads half of it.
pub(super) fn private_file(folder: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Spec;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn files_of_later_jobs_and_of_plans_stay() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        remove_older(&paths, 3);
        fs::create_dir_all(paths.run_files().join("job-1.auth")).unwrap();
        for name in ["job-2.end", "job-2.jsonl", "job-3.end", "job-10.jsonl", "job-plan.end", "job.json"] {
            fs::write(paths.run_files().join(name), "").unwrap();
        }
        remove_older(&paths, 3);
        let mut left: Vec<_> =
            fs::read_dir(paths.run_files()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["job-10.jsonl", "job-3.end", "job-plan.end", "job.json"]);
    }

    #[test]
    fn no_other_user_reads_a_file_of_a_job() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        fs::create_dir_all(paths.run_files()).unwrap();
        let files = JobFiles::new(&paths, &1);
        let mut request = JobRequest::new(Spec::Rollback, "p");
        request.credentials = Some("{}".into());
        files.write(&request).unwrap();
        let config = files.credentials().join("config.json");
        for (path, mode) in
            [(files.request(), 0o600), (files.output(), 0o600), (files.credentials(), 0o700), (config, 0o600)]
        {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
    }
}
