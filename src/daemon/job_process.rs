//! A job: its process, that process's report, and the record.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::IN_DAEMON;
use super::job_state::{JobState, State};
use super::output::{self, Output};
use super::record::{self, Record};
use super::request::JobRequest;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::command::{Apart, Command};

/// Variables of the service that the process of a job must not get.
const OURS_ALONE: &[&str] =
    &["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "MAINPID", "SYSTEMD_EXEC_PID"];

/// systemd's mark that stderr is the journal. The process inherits the service's stderr, whatever its client has.
const JOURNAL: &str = "JOURNAL_STREAM";

pub(super) struct JobProcess {
    pub record: Record,
    pub shown: JobState,
    pub announced: bool,
    process: Option<Apart>,
    output: Option<Output>,
}

impl JobProcess {
    pub(super) fn start(paths: &Paths, worker: &Path, id: u32, asked: &JobRequest) -> Result<JobProcess> {
        let failed = |e: io::Error| {
            let place = record::output(paths, id);
            Error::new(Code::Io, "cannot start the process of a job").object(place.display()).because(e)
        };
        std::fs::create_dir_all(paths.run_files()).map_err(failed)?;
        let place = record::output(paths, id);
        let out = output::make(&place).map_err(failed)?;
        let process = start(paths, worker, id, asked, out).map_err(|e| {
            record::clean(paths, id, true);
            failed(e)
        })?;
        let record = Record {
            id,
            kind: asked.kind,
            token: asked.token.clone(),
            reboot: asked.reboot,
            process: process.mark(),
            cancelled: false,
            over: None,
        };
        record.write(paths);
        let output = Output::open(&place).map_err(failed)?;
        Ok(JobProcess {
            record,
            shown: JobState::new(),
            announced: false,
            process: Some(process),
            output: Some(output),
        })
    }

    pub(super) fn adopt(paths: &Paths, record: Record) -> JobProcess {
        if let Some(shown) = record.over.clone() {
            return JobProcess { record, shown, announced: true, process: None, output: None };
        }
        let output = Output::open(&record.output(paths));
        if let Err(e) = &output {
            tracing::warn!("the output of job {} is lost: {e}", record.id);
        }
        let process = Apart::found(record.process);
        let mut work = JobProcess {
            record,
            shown: JobState::new(),
            announced: false,
            process: Some(process),
            output: output.ok(),
        };
        if work.record.cancelled {
            work.shown.state = State::Cancelling;
        }
        work.poll(paths);
        work
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn poll(&mut self, paths: &Paths) {
        let Some(process) = &mut self.process else { return };
        // Checked before the last reading: nothing is written after the end.
        let end = process.ended();
        self.listen();
        if let Some(end) = end {
            self.shown.close(end, self.record.cancelled);
            self.process = None;
            self.output = None;
            record::clean(paths, self.record.id, true);
            self.record.over = Some(self.shown.clone());
            self.record.write(paths);
        }
    }

    fn listen(&mut self) {
        let Some(output) = &mut self.output else { return };
        match output.lines() {
            Ok(lines) => {
                for line in lines {
                    self.shown.hear(self.record.kind, self.record.reboot, &line);
                }
                output.give_back();
            }
            Err(e) => tracing::warn!("the output of job {}: {e}", self.record.id),
        }
    }

    pub(super) fn cancel(&mut self, paths: &Paths) -> io::Result<()> {
        if self.record.cancelled {
            return Ok(());
        }
        let Some(process) = &mut self.process else { return Ok(()) };
        process.ask_to_end()?;
        self.record.cancelled = true;
        self.record.write(paths);
        self.shown.state = State::Cancelling;
        Ok(())
    }

    /// For a shutdown: the process ends between two steps. Returns whether to wait for it: one that has reported its result only waits for
    /// this shutdown.
    pub(super) fn end_with_system(&mut self) -> bool {
        let Some(process) = &mut self.process else { return false };
        if self.shown.result.is_some() {
            return false;
        }
        if let Err(e) = process.ask_to_end() {
            tracing::warn!("cannot end job {}: {e}", self.record.id);
        }
        true
    }
}

/// The process of a job, or of a plan, writes its report to `out`.
pub(super) fn start(
    paths: &Paths,
    worker: &Path,
    id: u32,
    asked: &JobRequest,
    out: File,
) -> io::Result<Apart> {
    let own = std::env::vars_os().filter(|(name, _)| !OURS_ALONE.iter().any(|n| name == n));
    let mut environment: Vec<(OsString, OsString)> = match &asked.environment {
        None => own.collect(),
        Some(given) => given.iter().map(|(name, value)| (name.into(), value.into())).collect(),
    };
    environment.extend(std::env::var_os(JOURNAL).map(|stream| (JOURNAL.into(), stream)));
    environment.push((IN_DAEMON.into(), (&asked.program).into()));
    if let Some(text) = &asked.credentials {
        let folder = record::credentials(paths, id);
        keep_secret(&folder, text)?;
        environment.push(("DOCKER_CONFIG".into(), folder.into()));
    }
    Command::new(worker).called("copal").args(&asked.args).only(environment).start_apart(out)
}

fn keep_secret(folder: &Path, text: &str) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(folder)?;
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(folder.join("config.json"))?
        .write_all(text.as_bytes())
}
