//! The state that all objects on the bus share. It does not use the bus, and survives a lost connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::apart::apart;
use super::dbus_error::text_of;
use super::shared_work::SharedWork;
use super::snapshot::Snapshot;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::job::{Job, JobFiles, JobRequest, JobStatus, State};
use crate::status;

/// Maximum age of the displayed state of the device.
const MAX_READING_AGE: Duration = Duration::from_millis(500);

pub(super) struct Core {
    pub paths: Paths,
    held: Mutex<Inner>,
    readings: Arc<SharedWork<Option<Reading>>>,
    /// Held while a plan is made: all plans use the same instance of the unit, and its files.
    pub planning: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Inner {
    job: Option<Job>,
    /// Whether the end of the job was reported.
    announced: bool,
    /// The job that has an object on the bus.
    on_bus: Option<u32>,
    reading: Option<Reading>,
    /// While it is set, the properties show the last reading and cause no other.
    holds_reading: bool,
    calls: usize,
}

/// A long call. The service does not exit before its end.
pub(super) struct CallGuard(Arc<Core>);

impl Drop for CallGuard {
    fn drop(&mut self) {
        let calls = &mut self.0.lock().calls;
        *calls = calls.saturating_sub(1);
    }
}

/// While it exists, no property causes a reading.
pub(super) struct HeldReading<'a>(&'a Core);

impl Drop for HeldReading<'_> {
    fn drop(&mut self) {
        self.0.lock().holds_reading = false;
    }
}

#[derive(Clone)]
pub(super) struct Reading {
    pub snapshot: Snapshot,
    pub json: Arc<str>,
    at: Instant,
}

impl Reading {
    fn of(status: &status::Status, at: Instant) -> Reading {
        let json = serde_json::to_string(status).unwrap_or_default().into();
        Reading { snapshot: Snapshot::from(status), json, at }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ShownJob {
    pub id: u32,
    pub state: State,
}

impl Inner {
    /// Does nothing for the present job.
    fn follow(&mut self, job: Job) {
        if self.job.as_ref().is_none_or(|j| j.record != job.record) {
            self.job = Some(job);
            self.announced = false;
        }
    }
}

pub(super) async fn settle(files: JobFiles) {
    let why = match apart(move || files.settle()).await {
        Ok(Ok(())) => return,
        Ok(Err(e)) => e.to_string(),
        Err(e) => e.to_string(),
    };
    tracing::debug!("cannot determine whether a job runs: {why}");
}

impl Core {
    pub(super) fn new(paths: Paths) -> Arc<Core> {
        // systemd may refuse a job that a process is starting now. The next poll finds it if it runs.
        let job = Job::after(&paths, None);
        let announced = job.as_ref().is_none_or(|j| !j.is_running());
        let held = Mutex::new(Inner { job, announced, ..Inner::default() });
        Arc::new(Core { paths, held, readings: SharedWork::new(), planning: tokio::sync::Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the job for its caller to follow: a later job may replace it here at any time.
    pub(super) async fn start(self: &Arc<Self>, request: JobRequest) -> Result<Job> {
        let paths = self.paths.clone();
        // systemd may answer late.
        let started = apart(move || Job::start(&paths, &request)).await;
        let job = started.map_err(|e| Error::new(Code::Io, "cannot start a job").because(e))??;
        let own = Job::of(&self.paths, job.record.clone());
        self.lock().follow(job);
        Ok(own)
    }

    /// Reads the events of the running job, or finds the next job that a client has started.
    pub(super) fn poll(&self) {
        let mut held = self.lock();
        match &mut held.job {
            Some(job) if job.is_running() => job.poll(),
            known => {
                let known = known.as_ref().map(|j| &j.record);
                if let Some(job) = Job::after(&self.paths, known) {
                    held.follow(job);
                }
            }
        }
    }

    /// Ends a job whose unit is gone. systemd may answer late.
    pub(super) async fn settle(&self) {
        let files = self.lock().job.as_ref().filter(|j| j.is_running()).map(|j| j.files().clone());
        if let Some(files) = files {
            settle(files).await;
        }
    }

    /// Cancels a job once. A cancelled job ends by itself.
    pub(super) async fn cancel(&self, id: u32) -> Result<()> {
        let is_it = |j: &&mut Job| j.record.id == id && j.state.status == JobStatus::Running;
        let Some(files) = self.lock().job.as_mut().filter(is_it).map(|j| {
            j.state.status = JobStatus::Cancelling;
            j.files().clone()
        }) else {
            return Ok(());
        };
        // systemd may answer late.
        let result = apart(move || files.cancel()).await;
        let result = result.unwrap_or_else(|e| Err(Error::new(Code::Io, "cannot cancel the job").because(e)));
        if result.is_err()
            && let Some(job) = self.lock().job.as_mut().filter(|j| j.record.id == id && j.is_running())
        {
            job.state.status = JobStatus::Running;
        }
        result
    }

    pub(super) fn is_working(&self) -> bool {
        self.lock().job.as_ref().is_some_and(Job::is_running)
    }

    /// Whether the service must not exit.
    pub(super) fn is_busy(&self) -> bool {
        let held = self.lock();
        held.calls > 0 || !held.announced
    }

    pub(super) fn is_calling(&self) -> bool {
        self.lock().calls > 0
    }

    pub(super) fn begin_call(self: &Arc<Self>) -> CallGuard {
        self.lock().calls += 1;
        CallGuard(self.clone())
    }

    pub(super) fn job(&self) -> Option<ShownJob> {
        self.lock().job.as_ref().map(|j| ShownJob { id: j.record.id, state: j.state.clone() })
    }

    pub(super) fn is_on_bus(&self, id: u32) -> bool {
        self.lock().on_bus == Some(id)
    }

    /// Records the job that has an object, and returns the job that had it before.
    pub(super) fn replace_job_on_bus(&self, id: Option<u32>) -> Option<u32> {
        std::mem::replace(&mut self.lock().on_bus, id)
    }

    pub(super) fn job_kind(&self, id: u32) -> &'static str {
        self.lock().job.as_ref().filter(|j| j.record.id == id).map_or("", |j| j.record.spec.kind())
    }

    /// Returns whether the end of the job is to be reported, and marks it as reported.
    pub(super) fn take_end(&self) -> bool {
        let mut held = self.lock();
        let ended = held.job.as_ref().is_some_and(|j| !j.is_running()) && !held.announced;
        held.announced |= ended;
        ended
    }

    pub(super) fn last_error(&self) -> String {
        let held = self.lock();
        let failed = held.job.as_ref().filter(|j| j.state.status == JobStatus::Failed);
        failed.and_then(|j| j.state.error.as_ref()).map(text_of).unwrap_or_default()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.lock().reading.as_ref().map(|r| r.snapshot.clone()).unwrap_or_default()
    }

    pub(super) fn hold_reading(&self) -> HeldReading<'_> {
        self.lock().holds_reading = true;
        HeldReading(self)
    }

    /// At most half a second old, unless the last reading is held.
    pub(super) async fn look(self: &Arc<Self>) -> Snapshot {
        if self.age() >= MAX_READING_AGE && !self.lock().holds_reading {
            self.read().await;
        }
        self.snapshot()
    }

    pub(super) async fn read(self: &Arc<Self>) -> Option<Reading> {
        let core = self.clone();
        let read = move || {
            let core = core.clone();
            async move {
                let paths = core.paths.clone();
                let at = Instant::now();
                // The medium may be slow, or failing.
                let status = apart(move || status::read(&paths)).await;
                let status = status.inspect_err(|e| tracing::debug!("cannot read the device: {e}")).ok()?;
                let reading = Reading::of(&status, at);
                core.lock().reading = Some(reading.clone());
                Some(reading)
            }
        };
        self.readings.run(read).await.flatten()
    }

    pub(super) fn age(&self) -> Duration {
        self.lock().reading.as_ref().map_or(Duration::MAX, |r| r.at.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::record::JobRecord;
    use crate::job::{Spec, start_lock};

    #[test]
    fn a_job_that_is_being_started_is_not_shown_yet() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        std::fs::create_dir_all(paths.run_files()).unwrap();
        let lock = start_lock::open(&paths.run_files()).unwrap();
        lock.lock().unwrap();
        JobRecord { id: 2, spec: Spec::Rollback, token: None }.write(&paths).unwrap();
        let core = Core::new(paths.clone());
        assert_eq!(core.job(), None);
        // systemd has refused it, and its starter has put the record of the last one back.
        JobRecord { id: 1, spec: Spec::Rollback, token: None }.write(&paths).unwrap();
        // Not by closing it: a program that another test is starting may have a copy of the file.
        lock.unlock().unwrap();
        core.poll();
        assert_eq!(core.job().unwrap().id, 1);
    }
}
