//! Decides where an update runs: as a job, which this process follows, or in this process.
//!
//! A lost SSH connection ends the programs that were started over it, but not a unit of systemd. The update runs in this process if systemd
//! does not run, and if the caller's place or `--no-daemon` forbids a job. Once systemd may have started the job, the update never runs here.

mod follow;
mod place;
mod view;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::absolute;

use crate::config::paths::Paths;
use crate::engine::credentials;
use crate::error::Result;
use crate::job::{CREDENTIALS_VARIABLE, Job, JobRequest, NotStarted, Source, Spec, UpdateSpec};
use crate::progress::Progress;
use crate::sys::log;
use crate::sys::signal::{SignalGuard, came, hung_up};
use crate::update::{self, Installed};

/// Updates by a job if `as_job` is set and systemd can start it, otherwise in this process. `program` is the name of the calling program.
/// `installed` is called when the new release is in place, before a reboot waits for applications.
pub fn update(
    spec: &UpdateSpec,
    paths: &Paths,
    program: &str,
    as_job: bool,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<()> {
    if as_job && let Some(result) = run_as_job(spec, paths, program, progress, installed)? {
        return result;
    }
    update::run(spec, paths, program, progress, installed)?;
    if spec.reboot { update::reboot(paths) } else { Ok(()) }
}

/// `None` if no job was started.
fn run_as_job(
    spec: &UpdateSpec,
    paths: &Paths,
    program: &str,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<Option<Result<()>>> {
    if let Some(why) = place::forbids_job(spec, paths) {
        tracing::debug!("the update runs in this process: {why}");
        return Ok(None);
    }
    // The job outlives this process, but a signal to this process cancels it.
    let signal_guard = match SignalGuard::begin() {
        Ok(signal_guard) => signal_guard,
        Err(e) => {
            tracing::debug!("the update runs in this process: {e}");
            return Ok(None);
        }
    };
    let job = match Job::start(paths, &request(spec, program)) {
        Ok(job) => job,
        Err(NotStarted::Refused(e)) => return Ok(Some(Err(e))),
        Err(NotStarted::Unavailable(why)) => {
            // A signal that came in the meantime ends the update with a result.
            update::go_on()?;
            signal_guard.release();
            tracing::info!("the update runs in this process: {why}");
            return Ok(None);
        }
    };
    tracing::info!(
        "job {} runs the update; its log is in the journal of {}",
        job.record.id,
        job.files().unit()
    );
    let on_installed = |done: &Installed| {
        // The job logs it as an event.
        tracing::info!("{}", update::summary(&spec.source, done));
        installed(done);
    };
    // Signals stay deferred: a signal is meant for the job, and the result shows its effect.
    Ok(Some(follow::follow(job, paths, progress, &on_installed)))
}

/// With environment and credentials of this process.
fn request(spec: &UpdateSpec, program: &str) -> JobRequest {
    let environment = environment(std::env::vars_os(), log::level());
    let mut request = JobRequest::new(Spec::Update(spec.clone()), program).with_environment(environment);
    request.credentials = match spec.source {
        // An archive needs no credentials. For an image, read them now: the caller's folder may be gone later.
        Source::File(_) => None,
        Source::Reference(_) => credentials::configuration(),
    };
    request
}

/// The job gets the log level of this process, and an absolute path of the credentials.
fn environment(
    all: impl Iterator<Item = (OsString, OsString)>,
    level: &'static str,
) -> HashMap<String, String> {
    let texts = all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut environment: HashMap<String, String> = texts.collect();
    if let Some(folder) = environment.get_mut(CREDENTIALS_VARIABLE).filter(|f| !f.is_empty())
        && let Some(path) = absolute(&*folder).ok().and_then(|p| p.into_os_string().into_string().ok())
    {
        *folder = path;
    }
    environment.insert(log::LEVEL_VARIABLE.to_owned(), level.to_owned());
    environment
}

/// Whether a signal cancels the update. The signals of a lost terminal do not cancel it.
fn is_cancelled() -> bool {
    use nix::sys::signal::Signal::{SIGINT, SIGQUIT, SIGTERM};
    !hung_up() && matches!(came(), Some(SIGINT | SIGQUIT | SIGTERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_and_the_level_is_that_of_this_process() {
        let own = [("HOME", "/root"), ("DOCKER_CONFIG", "sub"), ("COPAL_LOG", "x")];
        let environment = environment(own.iter().map(|(n, v)| (n.into(), v.into())), "info");
        let here = std::env::current_dir().unwrap().join("sub");
        let value = |name: &str| environment[name].as_str();
        assert_eq!((value("HOME"), value("COPAL_LOG")), ("/root", "info"));
        assert_eq!(value("DOCKER_CONFIG"), here.to_str().unwrap());
        assert_eq!(environment.len(), 3);
    }
}
