//! A job as a unit of systemd: an instance of `copal-job@.service`.
//!
//! The caller that starts a job writes its request to a file and starts the unit. The job's process takes the request, reports to a second file, and
//! the unit leaves its end in a third one. So the job depends on no client, no service and no bus, and each of them can follow it.
//! All files are in `/run/copal`, for root only: unit properties can be read by every user.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::IN_DAEMON;
use super::job_state::JobState;
use super::older;
use super::output::{self, LONGEST, Output};
use super::record::{RECORD, Record, content};
use super::request::JobRequest;
use super::start_lock;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::command::{End, become_copal};
use crate::sys::file;
use crate::sys::systemd::{Bus, SystemdError};
use crate::update::lock::Holder;

/// In bytes, of each file.
pub(super) const LARGEST: u64 = LONGEST as u64;

/// Variables of the unit that the program does not get: systemd's protocol is with the unit.
const OF_THE_UNIT: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "MAINPID", "SYSTEMD_EXEC_PID"];

/// systemd's mark that standard error is the journal: the unit's, whatever the client has.
const JOURNAL: &str = "JOURNAL_STREAM";

/// What the unit runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    args: Vec<String>,
    /// The client's; `None` for the unit's own.
    environment: Option<HashMap<String, String>>,
    /// Whether the client has passed on registry credentials.
    credentials: bool,
    program: String,
}

/// How the unit has ended. Nothing is known of one that was never started.
#[derive(Debug, Default, Serialize, Deserialize)]
struct EndRecord {
    status: Option<i32>,
    signal: Option<i32>,
}

impl EndRecord {
    /// From the environment of `ExecStopPost=`, systemd.exec(5).
    fn of_unit() -> EndRecord {
        let text = |name| std::env::var(name).unwrap_or_default();
        let status = text("EXIT_STATUS");
        match text("EXIT_CODE").as_str() {
            "exited" => EndRecord { status: status.parse().ok(), signal: None },
            _ => EndRecord {
                status: None,
                signal: Signal::from_str(&format!("SIG{status}")).ok().map(|s| s as i32),
            },
        }
    }

    fn end(&self) -> Option<End> {
        self.status.map(End::Status).or(self.signal.map(End::Signal))
    }
}

/// The files of one instance.
#[derive(Debug, Clone)]
pub(super) struct Files {
    folder: PathBuf,
    instance: String,
}

impl Files {
    pub(super) fn new(paths: &Paths, instance: &impl ToString) -> Files {
        Files { folder: paths.run_files(), instance: instance.to_string() }
    }

    fn at(&self, kind: &str) -> PathBuf {
        self.folder.join(format!("job-{}.{kind}", self.instance))
    }

    fn request(&self) -> PathBuf {
        self.at("request")
    }

    /// The request, once the job's process has taken it.
    fn taken(&self) -> PathBuf {
        self.at("taken")
    }

    fn credentials(&self) -> PathBuf {
        self.at("auth")
    }

    pub(super) fn output(&self) -> PathBuf {
        self.at("jsonl")
    }

    pub(super) fn unit(&self) -> String {
        format!("copal-job@{}.service", self.instance)
    }

    /// `None` while the job runs, or waits for its start.
    pub(super) fn end(&self) -> Option<Option<End>> {
        let text = match file::read_record(&self.at("end"), LARGEST) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("the end of job {} is unknown: {e}", self.instance);
                return Some(None);
            }
        };
        Some(serde_json::from_str(&text).ok().and_then(|end: EndRecord| end.end()))
    }

    /// The first end counts.
    fn write_end(&self, end: &EndRecord) -> io::Result<()> {
        match content(&self.folder, &serde_json::to_vec(end)?)?.persist_noclobber(self.at("end")) {
            Err(e) if e.error.kind() != io::ErrorKind::AlreadyExists => Err(e.error),
            _ => Ok(()),
        }
    }

    /// Whether the job had not taken its request, and now cannot take it any more.
    fn withdraw(&self) -> bool {
        let withdrawn = fs::remove_file(self.request()).is_ok();
        if withdrawn {
            self.forget_secrets();
        }
        withdrawn
    }

    fn forget_secrets(&self) {
        gone(fs::remove_file(self.request()), &self.instance);
        gone(fs::remove_file(self.taken()), &self.instance);
        gone(fs::remove_dir_all(self.credentials()), &self.instance);
    }

    pub(super) fn clean(&self) {
        self.forget_secrets();
        gone(fs::remove_file(self.output()), &self.instance);
        gone(fs::remove_file(self.at("end")), &self.instance);
    }

    pub(super) fn start(&self, request: &JobRequest) -> Result<(), NotStarted> {
        self.prepare(request)?;
        self.start_unit()
    }

    fn prepare(&self, request: &JobRequest) -> Result<(), NotStarted> {
        self.clean();
        self.write(request).inspect_err(|_| self.clean()).map_err(|e| {
            let text = format!("cannot write the request of {}", self.unit());
            NotStarted::Refused(Error::new(Code::Io, text).object(self.folder.display()).because(e))
        })
    }

    fn start_unit(&self) -> Result<(), NotStarted> {
        match Bus::system().start_unit(&self.unit()) {
            Ok(()) => Ok(()),
            // The job runs, and only the answer is lost: systemd was slow, or left the bus.
            Err(_) if !self.withdraw() => Ok(()),
            Err(e) => {
                self.clean();
                Err(NotStarted::Unavailable(e))
            }
        }
    }

    fn write(&self, request: &JobRequest) -> io::Result<()> {
        output::make(&self.output())?;
        if let Some(text) = &request.credentials {
            let folder = self.credentials();
            DirBuilder::new().mode(0o700).create(&folder)?;
            secret(&folder.join("config.json"))?.write_all(text.as_bytes())?;
        }
        let order = Order {
            args: request.args.clone(),
            environment: request.environment.clone(),
            credentials: request.credentials.is_some(),
            program: request.program.clone(),
        };
        secret(&self.request())?.write_all(&serde_json::to_vec(&order)?)
    }

    /// The job ends between two of its steps, or does not begin.
    pub(super) fn cancel(&self) -> Result<()> {
        let cancelled = if self.withdraw() {
            self.write_end(&EndRecord { status: None, signal: Some(Signal::SIGTERM as i32) })
        } else {
            Bus::system().terminate(&self.unit()).map_err(io::Error::other)
        };
        cancelled.map_err(|e| {
            let text = "cannot cancel the job: systemd does not end its process";
            Error::new(Code::BusUnreachable, text).object(self.unit()).because(e)
        })
    }

    /// Ends a job whose unit is gone without a trace, because systemd was not able to start it, or to run what follows its end.
    pub(super) fn settle(&self) -> Result<(), SystemdError> {
        let unreachable = |e: io::Error| SystemdError::Unreachable(e.to_string());
        // While another process starts a job, the unit may be inactive because it is not started yet.
        let lock = start_lock::open(&self.folder).map_err(unreachable)?;
        match lock.try_lock() {
            Ok(()) => self.settle_locked(),
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Error(e)) => Err(unreachable(e)),
        }
    }

    fn settle_locked(&self) -> Result<(), SystemdError> {
        if self.end().is_none() && Bus::system().is_inactive(&self.unit())? {
            self.forget_secrets();
            self.write_end(&EndRecord::default()).map_err(|e| SystemdError::Unreachable(e.to_string()))?;
        }
        Ok(())
    }
}

fn secret(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn gone(result: io::Result<()>, instance: &str) {
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("cannot remove a file of job {instance}: {e}");
        }
        _ => {}
    }
}

pub(super) enum NotStarted {
    Refused(Error),
    /// systemd cannot be reached, or does not know the unit. No job was started.
    Unavailable(SystemdError),
}

impl From<NotStarted> for Error {
    fn from(why: NotStarted) -> Error {
        match why {
            NotStarted::Refused(e) => e,
            NotStarted::Unavailable(e) => {
                Error::new(Code::BusUnreachable, "cannot start a job: systemd does not start its unit")
                    .object("copal-job@.service")
                    .because(e)
            }
        }
    }
}

/// A job that is followed.
pub(super) struct Job {
    pub record: Record,
    pub shown: JobState,
    files: Files,
    output: Option<Output>,
}

impl Job {
    /// The last one.
    pub(super) fn last(paths: &Paths) -> Option<Job> {
        Record::read(paths).map(|record| Job::of(paths, record))
    }

    /// The last one, unless that is `known`, or a process is starting a job at this moment: systemd may still refuse that one.
    pub(super) fn after(paths: &Paths, known: Option<&Record>) -> Option<Job> {
        let lock = start_lock::open(&paths.run_files()).ok()?;
        lock.try_lock().ok()?;
        Record::read(paths).filter(|record| Some(record) != known).map(|record| Job::of(paths, record))
    }

    pub(super) fn of(paths: &Paths, record: Record) -> Job {
        let files = Files::new(paths, &record.id);
        let output = Output::open(&files.output());
        if let Err(e) = &output {
            tracing::warn!("the output of job {} is lost: {e}", record.id);
        }
        let mut job = Job { record, shown: JobState::new(), files, output: output.ok() };
        job.poll();
        job
    }

    /// A repeated request with the same token gets the job that the first one has started.
    pub(super) fn start(paths: &Paths, request: &JobRequest) -> Result<Job, NotStarted> {
        let failed = |e: io::Error| {
            let error = Error::new(Code::Io, "cannot start a job").object(paths.run_files().display());
            NotStarted::Refused(error.because(e))
        };
        file::make_private(&paths.run_files()).map_err(failed)?;
        let lock = start_lock::open(&paths.run_files()).map_err(failed)?;
        // Held for the few calls below; the next request waits.
        if !start_lock::take(&lock, start_lock::LIMIT).map_err(failed)? {
            let text = "cannot begin: another process has been starting a job for too long";
            return Err(NotStarted::Refused(
                Error::new(Code::Busy, text)
                    .object(paths.run_files().join(start_lock::LOCK).display())
                    .with_hint("end the process that holds this file, then try again"),
            ));
        }
        let last = Job::last(paths);
        if let Some(mut last) = last {
            if request.token.is_some()
                && last.record.token == request.token
                && last.record.kind == request.kind
            {
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
            return Job::start_after(paths, request, Some(last), &lock);
        }
        Job::start_after(paths, request, None, &lock)
    }

    fn busy(&self) -> Error {
        let (kind, id) = (self.record.kind.as_str(), self.record.id);
        Error::new(Code::Busy, format!("cannot begin: the {kind} of job {id} is under way"))
            .object(super::job_path(id))
            .with_hint("wait until that job is over, or cancel it")
    }

    fn start_after(
        paths: &Paths,
        request: &JobRequest,
        last: Option<Job>,
        lock: &File,
    ) -> Result<Job, NotStarted> {
        // An update or a verdict outside of a job; the job would be refused with the same words.
        if let Ok(Some(holder)) = Holder::of(paths) {
            let text = format!("cannot begin: {}", holder.doing());
            return Err(NotStarted::Refused(Error::new(Code::Busy, text).with_hint(holder.advice())));
        }
        let cannot_record = |e: io::Error| {
            NotStarted::Refused(Error::new(Code::Io, "cannot record a job").object(RECORD).because(e))
        };
        let last_id = last.as_ref().map_or(0, |l| l.record.id);
        let record = Record {
            id: start_lock::next_number(lock, last_id).map_err(cannot_record)?,
            kind: request.kind,
            token: request.token.clone(),
            reboot: request.reboot,
        };
        let files = Files::new(paths, &record.id);
        files.prepare(request)?;
        // After the files: a process that reads the record opens the output. Before the start: no process follows a job without a record.
        record.write(paths).inspect_err(|_| files.clean()).map_err(cannot_record)?;
        if let Err(e) = files.start_unit() {
            let restored = match &last {
                Some(last) => last.record.write(paths),
                None => fs::remove_file(paths.run_files().join(RECORD)),
            };
            gone(restored, &files.instance);
            return Err(e);
        }
        if let Some(last) = last {
            // Its own stay: a follower may not have read its end.
            older::remove(paths, last.record.id);
        }
        Ok(Job::of(paths, record))
    }

    pub(super) fn is_running(&self) -> bool {
        !self.shown.state.is_final()
    }

    pub(super) fn poll(&mut self) {
        self.poll_each(|_| ());
    }

    /// Passes on the state after each line of its report. Returns whether there was any.
    pub(super) fn poll_each(&mut self, each: impl FnMut(&JobState)) -> bool {
        if !self.is_running() {
            return false;
        }
        // Checked before the last reading: nothing is written after the end.
        let end = self.files.end();
        let heard = self.listen(each);
        if let Some(end) = end {
            self.shown.close(end);
            self.output = None;
        }
        heard || end.is_some()
    }

    fn listen(&mut self, mut each: impl FnMut(&JobState)) -> bool {
        let Some(output) = &mut self.output else { return false };
        match output.lines() {
            Ok(lines) => {
                for line in &lines {
                    self.shown.hear(self.record.kind, self.record.reboot, line);
                    each(&self.shown);
                }
                output.give_back();
                !lines.is_empty()
            }
            Err(e) => {
                tracing::warn!("the output of job {}: {e}", self.record.id);
                false
            }
        }
    }

    pub(super) fn files(&self) -> &Files {
        &self.files
    }
}

/// Becomes the program of the request that waits for this instance. Returns only on failure.
pub(crate) fn run(paths: &Paths, instance: &str) -> Result<Infallible> {
    let files = Files::new(paths, &instance);
    let failed = |what: &str, e: io::Error| {
        Error::new(Code::Io, format!("cannot run job {instance}: cannot {what}"))
            .object(files.request().display())
            .because(e)
            .with_hint("start jobs with `copal update` or over D-Bus, which write the request")
    };
    // Taken first: no other process runs it, not even a second start of the unit.
    let taken = files.taken();
    fs::rename(files.request(), &taken).map_err(|e| failed("take its request", e))?;
    let order = file::read_record(&taken, LARGEST).and_then(|text| Ok(serde_json::from_str::<Order>(&text)?));
    gone(fs::remove_file(&taken), instance);
    let order = order.map_err(|e| failed("read its request", e))?;
    let out =
        OpenOptions::new().append(true).open(files.output()).map_err(|e| failed("open its output", e))?;
    Err(failed("start its program", become_copal(&order.args, environment(&order, &files), out)))
}

fn environment(order: &Order, files: &Files) -> Vec<(OsString, OsString)> {
    let own = std::env::vars_os().filter(|(name, _)| !OF_THE_UNIT.iter().any(|n| name == n));
    let mut environment: Vec<(OsString, OsString)> = match &order.environment {
        None => own.collect(),
        Some(given) => given.iter().map(|(name, value)| (name.into(), value.into())).collect(),
    };
    environment.extend(std::env::var_os(JOURNAL).map(|stream| (JOURNAL.into(), stream)));
    environment.push((IN_DAEMON.into(), (&order.program).into()));
    if order.credentials {
        environment.push(("DOCKER_CONFIG".into(), files.credentials().into()));
    }
    environment
}

/// Records the end of the unit, from its environment.
pub(crate) fn ended(paths: &Paths, instance: &str) -> Result<()> {
    let files = Files::new(paths, &instance);
    files.forget_secrets();
    files.write_end(&EndRecord::of_unit()).map_err(|e| {
        Error::new(Code::Io, format!("cannot record the end of job {instance}"))
            .object(files.at("end").display())
            .because(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::job_state::JobKind;

    #[test]
    fn a_job_is_taken_up_once_its_start_is_certain() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        assert!(Job::after(&paths, None).is_none());
        fs::create_dir_all(paths.run_files()).unwrap();
        let record = Record { id: 1, kind: JobKind::Update, token: None, reboot: false };
        record.write(&paths).unwrap();
        let lock = start_lock::open(&paths.run_files()).unwrap();
        lock.lock().unwrap();
        assert!(Job::after(&paths, None).is_none(), "systemd may still refuse it");
        drop(lock);
        assert_eq!(Job::after(&paths, None).unwrap().record, record);
        assert!(Job::after(&paths, Some(&record)).is_none(), "known");
    }
}
