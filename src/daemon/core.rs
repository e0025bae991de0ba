//! What the objects on the bus have in common. It knows nothing of the bus, and outlives connections to it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::dbus_error::DbusError;
use super::job_process::JobProcess;
use super::job_state::{JobState, State};
use super::record::{self, Record};
use super::request::JobRequest;
use super::shared_work::SharedWork;
use super::snapshot::Snapshot;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::status;
use crate::update::lock::Holder;

/// How old what is shown of the device may be.
const FRESH: Duration = Duration::from_millis(500);

/// The service's state.
pub(super) struct Core {
    pub paths: Paths,
    worker: PathBuf,
    held: Mutex<Inner>,
    readings: Arc<SharedWork<Option<Reading>>>,
    /// Plans without options, which everyone may ask for.
    pub plans: Arc<SharedWork<Result<String, DbusError>>>,
}

#[derive(Default)]
struct Inner {
    job: Option<JobProcess>,
    reading: Option<Reading>,
    /// How many calls that take long are under way, for each kind.
    calls: [usize; 3],
}

/// A call that takes long.
#[derive(Debug, Clone, Copy)]
pub(super) enum LongCall {
    /// A plan without options: any number of callers wait for one.
    Plan,
    /// A plan with options.
    PlanWithOptions,
    MarkGood,
}

/// A call that takes long, as long as it lasts.
pub(super) struct CallGuard(Arc<Core>, LongCall);

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some(calls) = self.0.lock().calls.get_mut(self.1 as usize) {
            *calls = calls.saturating_sub(1);
        }
    }
}

/// Where the device stood at one moment.
#[derive(Clone)]
pub(super) struct Reading {
    pub snapshot: Snapshot,
    /// Everything of it as JSON: for root.
    pub full: Arc<str>,
    /// Without lines of the journal: for those who may not read that.
    pub public: Arc<str>,
    at: Instant,
}

impl Reading {
    fn of(mut status: status::Status, at: Instant) -> Reading {
        let json = |status: &status::Status| serde_json::to_string(status).unwrap_or_default().into();
        let (snapshot, full) = (Snapshot::from(&status), json(&status));
        let records = [&mut status.last_update, &mut status.last_rollback];
        records.into_iter().flatten().for_each(|record| record.journal.clear());
        Reading { snapshot, full, public: json(&status), at }
    }
}

/// A job as the bus is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CurrentJob {
    pub id: u32,
    pub shown: JobState,
}

impl Core {
    /// With the last job of an earlier service, if there was one.
    pub(super) fn new(paths: Paths, worker: PathBuf) -> Arc<Core> {
        let job = Record::read(&paths).map(|record| JobProcess::adopt(&paths, record));
        let held = Mutex::new(Inner { job, ..Inner::default() });
        Arc::new(Core { paths, worker, held, readings: SharedWork::new(), plans: SharedWork::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn worker(&self) -> &Path {
        &self.worker
    }

    /// The last job, if it is the one that is asked for again: its client had no answer.
    pub(super) fn asked_before(&self, asked: &JobRequest) -> Option<u32> {
        let held = self.lock();
        let job = held.job.as_ref().filter(|j| j.record.kind == asked.kind)?;
        (asked.token.is_some() && job.record.token == asked.token).then_some(job.record.id)
    }

    /// Starts a job, and gives its number, and that of the one before.
    pub(super) fn start(&self, asked: &JobRequest) -> Result<(u32, Option<u32>)> {
        let mut held = self.lock();
        if let Some(job) = held.job.as_mut() {
            job.poll(&self.paths);
        }
        if let Some(job) = held.job.as_ref().filter(|j| j.is_running()) {
            let (kind, id) = (job.record.kind.as_str(), job.record.id);
            return Err(Error::new(Code::Busy, format!("cannot begin: the {kind} of job {id} is under way"))
                .object(super::job_path(id))
                .with_hint("wait until that job is over, or cancel it"));
        }
        // Whoever updates without the service, or speaks a verdict; its own process would be refused in the same words.
        if let Ok(Some(holder)) = Holder::of(&self.paths) {
            let text = format!("cannot begin: {}", holder.doing());
            return Err(Error::new(Code::Busy, text).with_hint(holder.advice()));
        }
        let before = held.job.as_ref().map(|j| j.record.id);
        let id = before.unwrap_or(0).checked_add(1).unwrap_or(1);
        let job = JobProcess::start(&self.paths, &self.worker, id, asked)?;
        held.job = Some(job);
        if let Some(before) = before {
            record::clean(&self.paths, before, true);
        }
        Ok((id, before))
    }

    /// Takes up what the job's process has reported.
    pub(super) fn poll(&self) {
        if let Some(job) = &mut self.lock().job {
            job.poll(&self.paths);
        }
    }

    /// Ends job `id` if it still runs.
    pub(super) fn cancel(&self, id: u32) -> Result<()> {
        let mut held = self.lock();
        let Some(job) = held.job.as_mut().filter(|j| j.record.id == id) else { return Ok(()) };
        job.cancel(&self.paths)
            .map_err(|e| Error::new(Code::Io, "cannot end the process of the job").because(e))
    }

    pub(super) fn end_with_system(&self) -> bool {
        self.lock().job.as_mut().is_some_and(JobProcess::end_with_system)
    }

    /// Whether a job is under way.
    pub(super) fn is_working(&self) -> bool {
        self.lock().job.as_ref().is_some_and(JobProcess::is_running)
    }

    /// Whether the service is needed.
    pub(super) fn is_busy(&self) -> bool {
        let held = self.lock();
        held.calls.iter().any(|&n| n > 0) || held.job.as_ref().is_some_and(|j| j.is_running() || !j.told)
    }

    /// Whether a call that takes long is under way.
    pub(super) fn is_calling(&self) -> bool {
        self.lock().calls.iter().any(|&n| n > 0)
    }

    /// Begins a call that takes long; `None` where another one of its kind excludes it.
    pub(super) fn begin_call(self: &Arc<Self>, kind: LongCall) -> Option<CallGuard> {
        let mut held = self.lock();
        let calls = held.calls.get_mut(kind as usize)?;
        if *calls > 0 && !matches!(kind, LongCall::Plan) {
            return None;
        }
        *calls += 1;
        Some(CallGuard(self.clone(), kind))
    }

    /// The last job, over or not.
    pub(super) fn job(&self) -> Option<CurrentJob> {
        self.lock().job.as_ref().map(|j| CurrentJob { id: j.record.id, shown: j.shown.clone() })
    }

    pub(super) fn job_kind(&self, id: u32) -> &'static str {
        self.lock().job.as_ref().filter(|j| j.record.id == id).map_or("", |j| j.record.kind.as_str())
    }

    /// Whether the end of the job is still to be told; from now on it is.
    pub(super) fn take_end(&self) -> bool {
        match &mut self.lock().job {
            Some(job) if job.shown.state.is_final() && !job.told => {
                job.told = true;
                true
            }
            _ => false,
        }
    }

    /// Why the last job has failed.
    pub(super) fn last_error(&self) -> String {
        let held = self.lock();
        let failed = held.job.as_ref().filter(|j| j.shown.state == State::Failed);
        failed.and_then(|j| j.shown.error.as_ref()).map(super::job_state::Failure::text).unwrap_or_default()
    }

    /// Where the device stands, as it was when last looked at.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.lock().reading.as_ref().map(|r| r.snapshot.clone()).unwrap_or_default()
    }

    /// Where the device stands, at most half a second ago.
    pub(super) async fn look(self: &Arc<Self>) -> Snapshot {
        if self.age() >= FRESH {
            self.read().await;
        }
        self.snapshot()
    }

    /// Reads where the device stands: one reader at a time, for all who ask.
    pub(super) async fn read(self: &Arc<Self>) -> Option<Reading> {
        let core = self.clone();
        let read = move || {
            let core = core.clone();
            async move {
                let paths = core.paths.clone();
                let at = Instant::now();
                // The files are on a medium that may be slow, or failing.
                let status = tokio::task::spawn_blocking(move || status::read(&paths)).await.ok()?;
                let reading = Reading::of(status, at);
                core.lock().reading = Some(reading.clone());
                Some(reading)
            }
        };
        self.readings.run(read).await.flatten()
    }

    /// How long ago the device was looked at.
    pub(super) fn age(&self) -> Duration {
        self.lock().reading.as_ref().map_or(Duration::MAX, |r| r.at.elapsed())
    }
}
