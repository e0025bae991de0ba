//! Follows a job, from its start or from its record.

use std::fs;
use std::fs::File;
use std::io;

use super::event::Event;
use super::files::{JobFiles, remove_older};
use super::lock::Holder;
use super::output::Output;
use super::record::{JobRecord, RECORD_FILE, object_path};
use super::request::JobRequest;
use super::start_lock;
use super::state::State;
use super::unit::NotStarted;
use crate::config::paths::Paths;
use crate::error::{Code, Error};
use crate::sys::file;

pub(crate) struct Job {
    pub record: JobRecord,
    pub state: State,
    files: JobFiles,
    output: Option<Output>,
}

impl Job {
    /// The last job, unless it is `known`. `None` while a process starts a job, because systemd may still refuse it.
    pub(crate) fn after(paths: &Paths, known: Option<&JobRecord>) -> Option<Job> {
        let lock = start_lock::open(&paths.run_files()).ok()?;
        lock.try_lock().ok()?;
        JobRecord::read(paths).filter(|record| Some(record) != known).map(|record| Job::of(paths, record))
    }

    pub(crate) fn of(paths: &Paths, record: JobRecord) -> Job {
        let files = JobFiles::new(paths, &record.id);
        let output = Output::open(&files.output());
        if let Err(e) = &output {
            tracing::warn!("the output of job {} is lost: {e}", record.id);
        }
        let mut job = Job { record, state: State::new(), files, output: output.ok() };
        job.poll();
        job
    }

    /// A repeated request with the token of the last job returns that job.
    pub(crate) fn start(paths: &Paths, request: &JobRequest) -> Result<Job, NotStarted> {
        let failed = |e: io::Error| {
            let error = Error::new(Code::Io, "cannot start a job").object(paths.run_files().display());
            NotStarted::Refused(error.because(e))
        };
        file::make_private(&paths.run_files()).map_err(failed)?;
        let lock = start_lock::open(&paths.run_files()).map_err(failed)?;
        // Held for the calls below. Other requests wait.
        if !start_lock::take(&lock, start_lock::WAIT_LIMIT).map_err(failed)? {
            let text = "cannot begin: another process has been starting a job for too long";
            return Err(NotStarted::Refused(
                Error::new(Code::Busy, text)
                    .object(paths.run_files().join(start_lock::LOCK_FILE).display())
                    .with_hint("end the process that holds this file, then try again"),
            ));
        }
        let last = JobRecord::read(paths).map(|record| Job::of(paths, record));
        let Some(mut last) = last else { return Job::start_after(paths, request, None, &lock) };
        let is_same = last.record.token == request.token && last.record.spec.kind() == request.spec.kind();
        if request.token.is_some() && is_same {
            return Ok(last);
        }
        if last.is_running() {
            if let Err(e) = last.files.settle_locked() {
                tracing::debug!("job {}: {e}", last.record.id);
            }
            last.poll();
        }
        if last.is_running() {
            return Err(NotStarted::Refused(last.busy()));
        }
        Job::start_after(paths, request, Some(last), &lock)
    }

    fn busy(&self) -> Error {
        let JobRecord { id, spec, .. } = &self.record;
        Error::new(Code::Busy, format!("cannot begin: the {} of job {id} is under way", spec.kind()))
            .object(object_path(*id))
            .with_hint("wait until that job is over, or cancel it")
    }

    fn start_after(
        paths: &Paths,
        request: &JobRequest,
        last: Option<Job>,
        lock: &File,
    ) -> Result<Job, NotStarted> {
        // An update runs outside of a job. The job would fail with the same error. It waits for a change of the boot state.
        if let Ok(Some(holder)) = Holder::of(paths)
            && holder.lasts()
        {
            return Err(NotStarted::Refused(holder.busy()));
        }
        let cannot_record = |e: io::Error| {
            NotStarted::Refused(Error::new(Code::Io, "cannot record a job").object(RECORD_FILE).because(e))
        };
        let last_id = last.as_ref().map_or(0, |l| l.record.id);
        let id = start_lock::next_number(lock, last_id).map_err(cannot_record)?;
        let record = JobRecord { id, spec: request.spec.clone(), token: request.token.clone() };
        let files = JobFiles::new(paths, &record.id);
        files.prepare(request)?;
        // After the files: a process that reads the record opens the output. Before the start: no process follows a job without a record.
        record.write(paths).inspect_err(|_| files.remove()).map_err(cannot_record)?;
        if let Err(e) = files.start_unit() {
            let restored = match &last {
                Some(last) => last.record.write(paths),
                None => fs::remove_file(paths.run_files().join(RECORD_FILE)),
            };
            files.warn_unless_gone(restored);
            return Err(e);
        }
        if let Some(last) = last {
            // Keep the files of the last job: a follower may not have read its end.
            remove_older(paths, last.record.id);
        }
        Ok(Job::of(paths, record))
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.state.status.is_final()
    }

    pub(crate) fn poll(&mut self) {
        self.poll_each(|_| ());
    }

    /// Calls `each` with the state after each event. Returns whether there was news.
    pub(crate) fn poll_each(&mut self, each: impl FnMut(&State)) -> bool {
        if !self.is_running() {
            return false;
        }
        // Read before the output: the job writes nothing after its end.
        let end = self.files.end();
        let has_lines = self.read_output(each);
        if let Some(end) = end {
            self.state.close(end);
            self.output = None;
        }
        has_lines || end.is_some()
    }

    fn read_output(&mut self, mut each: impl FnMut(&State)) -> bool {
        let Some(output) = &mut self.output else { return false };
        match output.lines() {
            Ok(lines) => {
                for event in lines.iter().filter_map(|line| Event::of_line(line)) {
                    self.state.apply(&self.record.spec, event);
                    each(&self.state);
                }
                output.free_read();
                !lines.is_empty()
            }
            Err(e) => {
                tracing::warn!("the output of job {}: {e}", self.record.id);
                false
            }
        }
    }

    pub(crate) fn files(&self) -> &JobFiles {
        &self.files
    }
}

#[cfg(test)]
mod tests {
    use super::super::Spec;
    use super::*;

    #[test]
    fn a_job_is_taken_up_once_its_start_is_certain() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        assert!(Job::after(&paths, None).is_none());
        fs::create_dir_all(paths.run_files()).unwrap();
        let record = JobRecord { id: 1, spec: Spec::Rollback, token: None };
        record.write(&paths).unwrap();
        let lock = start_lock::open(&paths.run_files()).unwrap();
        lock.lock().unwrap();
        assert!(Job::after(&paths, None).is_none(), "systemd may still refuse it");
        drop(lock);
        assert_eq!(Job::after(&paths, None).unwrap().record, record);
        assert!(Job::after(&paths, Some(&record)).is_none(), "known");
    }
}
