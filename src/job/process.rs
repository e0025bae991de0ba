//! The process of a job's unit: `copal job INSTANCE`.
//!
//! The process starts with the environment of the unit. It takes the request and executes itself again with the environment of the request,
//! because libraries, hooks and programs read the environment at any time. After that it reads the taken request and does the job.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::str::FromStr as _;

use nix::sys::signal::Signal;

use super::environment;
use super::files::{EndRecord, JobFiles, MAX_FILE_BYTES};
use super::{JobRequest, Spec};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::command::{SELF, become_copal};
use crate::sys::file;

/// Takes the request of this instance and executes the program that does the job. Returns only on failure.
pub(crate) fn become_job(paths: &Paths, instance: &str) -> Result<Infallible> {
    let files = JobFiles::new(paths, &instance);
    let failed = |what, path: &Path, e| cannot_run(instance, what, path, e);
    // First: then no other process can take it, even if systemd starts the unit again.
    let (request, taken) = (files.request(), files.taken());
    fs::rename(&request, &taken).map_err(|e| failed("take its request", &request, e))?;
    let started = || {
        let request = read(&taken).map_err(|e| failed("read its request", &taken, e))?;
        let output = files.output();
        let out = OpenOptions::new().append(true).open(&output);
        let out = out.map_err(|e| failed("open its output", &output, e))?;
        let root = paths.root().as_os_str();
        let args = [
            "job".into(),
            "--json".into(),
            joined("--root=", root),
            joined("--run-for=", request.program.as_ref()),
            instance.into(),
        ];
        let credentials = Some(files.credentials()).filter(|folder| folder.is_dir());
        let environment = environment::of_job(request.environment(), std::env::vars_os(), credentials);
        Err(failed("start its program", Path::new(SELF), become_copal(&args, environment, out)))
    };
    started().inspect_err(|_| files.forget_secrets())
}

/// Reads and removes the request that [`become_job`] has taken.
pub(crate) fn take_spec(paths: &Paths, instance: &str) -> Result<Spec> {
    let files = JobFiles::new(paths, &instance);
    let taken = files.taken();
    let request = read(&taken).map_err(|e| cannot_run(instance, "read its request", &taken, e))?;
    // Of two processes, only one can remove it.
    fs::remove_file(&taken).map_err(|e| cannot_run(instance, "remove its request", &taken, e))?;
    Ok(request.spec)
}

fn read(path: &Path) -> io::Result<JobRequest> {
    file::read_record(path, MAX_FILE_BYTES).and_then(|text| Ok(serde_json::from_str(&text)?))
}

fn cannot_run(instance: &str, what: &str, path: &Path, e: io::Error) -> Error {
    Error::new(Code::Io, format!("cannot run job {instance}: cannot {what}"))
        .object(path.display())
        .because(e)
        .with_hint("start jobs with `copal update` or over D-Bus, which write the request")
}

fn joined(flag: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(flag);
    word.push(value);
    word
}

/// Records the end of the unit, from the environment of `ExecStopPost=` (systemd.exec(5)).
pub(crate) fn record_end(paths: &Paths, instance: &str) -> Result<()> {
    let files = JobFiles::new(paths, &instance);
    files.forget_secrets();
    let text = |name| std::env::var(name).unwrap_or_default();
    let status = text("EXIT_STATUS");
    let end = match text("EXIT_CODE").as_str() {
        "exited" => EndRecord { status: status.parse().ok(), signal: None },
        _ => {
            let signal = Signal::from_str(&format!("SIG{status}")).ok().map(|s| s as i32);
            EndRecord { status: None, signal }
        }
    };
    files.write_end(&end).map_err(|e| {
        Error::new(Code::Io, format!("cannot record the end of job {instance}"))
            .object(files.end_record().display())
            .because(e)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Source, UpdateSpec};

    #[test]
    fn a_request_is_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        fs::create_dir_all(paths.run_files()).unwrap();
        let files = JobFiles::new(&paths, &1);
        let spec = Spec::Update(UpdateSpec::new(Source::Reference("a:1".into())));
        fs::write(files.taken(), serde_json::to_vec(&JobRequest::new(spec.clone(), "p")).unwrap()).unwrap();
        assert_eq!(take_spec(&paths, "1").unwrap(), spec);
        let e = take_spec(&paths, "1").unwrap_err();
        assert!(e.message().starts_with("cannot run job 1: cannot read its request"), "{e}");
        assert_eq!(e.subject(), files.taken().to_str());
    }

    #[test]
    fn a_process_that_dies_before_it_reads_the_request_leaves_no_secret() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        fs::create_dir_all(paths.run_files()).unwrap();
        let files = JobFiles::new(&paths, &1);
        let mut request = JobRequest::new(Spec::Rollback, "p");
        request.credentials = Some("{}".into());
        files.write(&request).unwrap();
        fs::rename(files.request(), files.taken()).unwrap();
        record_end(&paths, "1").unwrap();
        assert!(!files.taken().exists() && !files.credentials().exists());
        assert!(files.end().is_some());
    }

    #[test]
    fn a_request_that_cannot_be_read_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        fs::create_dir_all(paths.run_files()).unwrap();
        let files = JobFiles::new(&paths, &1);
        fs::write(files.request(), r#"{"spec":"new","program":"p","environment":null}"#).unwrap();
        let e = become_job(&paths, "1").unwrap_err();
        assert!(e.message().starts_with("cannot run job 1: cannot read its request"), "{e}");
        assert_eq!(e.subject(), files.taken().to_str());
        assert!(!files.request().exists() && !files.taken().exists());
    }
}
