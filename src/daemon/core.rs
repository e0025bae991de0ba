//! The state that all objects on the bus share. It does not use the bus, and outlives connections to it.

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

/// Maximum age of the displayed state of the device.
const FRESH: Duration = Duration::from_millis(500);

pub(super) struct Core {
    pub paths: Paths,
    worker: PathBuf,
    held: Mutex<Inner>,
    readings: Arc<SharedWork<Option<Reading>>>,
    /// Plans without options, which every user may request.
    pub plans: Arc<SharedWork<Result<String, DbusError>>>,
}

#[derive(Default)]
struct Inner {
    job: Option<JobProcess>,
    reading: Option<Reading>,
    calls: [usize; 3],
}

#[derive(Debug, Clone, Copy)]
pub(super) enum LongCall {
    /// Without options: any number of callers wait for one.
    Plan,
    PlanWithOptions,
    MarkGood,
}

/// The call lasts as long as this value.
pub(super) struct CallGuard(Arc<Core>, LongCall);

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some(calls) = self.0.lock().calls.get_mut(self.1 as usize) {
            *calls = calls.saturating_sub(1);
        }
    }
}

#[derive(Clone)]
pub(super) struct Reading {
    pub snapshot: Snapshot,
    /// Everything as JSON: for root.
    pub full: Arc<str>,
    /// Without journal lines: for users who may not read the journal.
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CurrentJob {
    pub id: u32,
    pub shown: JobState,
}

impl Core {
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

    /// The last job, if this is a repeated request for it: its client got no answer.
    pub(super) fn asked_before(&self, asked: &JobRequest) -> Option<u32> {
        let held = self.lock();
        let job = held.job.as_ref().filter(|j| j.record.kind == asked.kind)?;
        (asked.token.is_some() && job.record.token == asked.token).then_some(job.record.id)
    }

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
        // An update or a verdict outside the service; the job's own process would be refused with the same words.
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

    pub(super) fn poll(&self) {
        if let Some(job) = &mut self.lock().job {
            job.poll(&self.paths);
        }
    }

    pub(super) fn cancel(&self, id: u32) -> Result<()> {
        let mut held = self.lock();
        let Some(job) = held.job.as_mut().filter(|j| j.record.id == id) else { return Ok(()) };
        job.cancel(&self.paths)
            .map_err(|e| Error::new(Code::Io, "cannot end the process of the job").because(e))
    }

    pub(super) fn end_with_system(&self) -> bool {
        self.lock().job.as_mut().is_some_and(JobProcess::end_with_system)
    }

    pub(super) fn is_working(&self) -> bool {
        self.lock().job.as_ref().is_some_and(JobProcess::is_running)
    }

    /// Whether the service must not exit.
    pub(super) fn is_busy(&self) -> bool {
        let held = self.lock();
        held.calls.iter().any(|&n| n > 0) || held.job.as_ref().is_some_and(|j| j.is_running() || !j.announced)
    }

    pub(super) fn is_calling(&self) -> bool {
        self.lock().calls.iter().any(|&n| n > 0)
    }

    /// `None` where another call of its kind excludes it.
    pub(super) fn begin_call(self: &Arc<Self>, kind: LongCall) -> Option<CallGuard> {
        let mut held = self.lock();
        let calls = held.calls.get_mut(kind as usize)?;
        if *calls > 0 && !matches!(kind, LongCall::Plan) {
            return None;
        }
        *calls += 1;
        Some(CallGuard(self.clone(), kind))
    }

    pub(super) fn job(&self) -> Option<CurrentJob> {
        self.lock().job.as_ref().map(|j| CurrentJob { id: j.record.id, shown: j.shown.clone() })
    }

    pub(super) fn job_kind(&self, id: u32) -> &'static str {
        self.lock().job.as_ref().filter(|j| j.record.id == id).map_or("", |j| j.record.kind.as_str())
    }

    /// Whether the end of the job was not reported yet. It counts as reported from now on.
    pub(super) fn take_end(&self) -> bool {
        match &mut self.lock().job {
            Some(job) if job.shown.state.is_final() && !job.announced => {
                job.announced = true;
                true
            }
            _ => false,
        }
    }

    pub(super) fn last_error(&self) -> String {
        let held = self.lock();
        let failed = held.job.as_ref().filter(|j| j.shown.state == State::Failed);
        failed.and_then(|j| j.shown.error.as_ref()).map(super::job_state::Failure::text).unwrap_or_default()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.lock().reading.as_ref().map(|r| r.snapshot.clone()).unwrap_or_default()
    }

    /// At most half a second old.
    pub(super) async fn look(self: &Arc<Self>) -> Snapshot {
        if self.age() >= FRESH {
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
                let status = tokio::task::spawn_blocking(move || status::read(&paths)).await.ok()?;
                let reading = Reading::of(status, at);
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
