//! An update as a job of its own, which the client follows.
//!
//! A lost connection ends the programs that were started over it, but not a unit of systemd. Where systemd does
//! not run, or the caller's place or `--no-daemon` forbids a job, the update runs in this process. Once systemd may have started the job, the update never runs here.

mod follow;
mod place;
mod view;

use std::ffi::OsString;

use crate::error::Result;
use crate::progress::{self, Progress};
use crate::sys::log;
use crate::sys::signal::{SignalGuard, came, hung_up};
use crate::update::{self, Installed, Request};

use super::request::JobRequest;
use super::unit::{Job, NotStarted};

/// As a job if `hand_over` and systemd can start one, otherwise here. `installed` is called when the new release is in place, before a
/// reboot waits for anything.
pub fn update(
    request: &Request,
    hand_over: bool,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<()> {
    if hand_over && let Some(result) = as_job(request, progress, installed)? {
        return result;
    }
    update::run(request, progress, installed)?;
    if request.reboot { update::reboot(&request.paths) } else { Ok(()) }
}

pub(crate) fn hostapp_update(args: &[OsString]) -> Result<()> {
    // As the script did.
    log::steps_on_stdout();
    let (request, hand_over) = update::asked(args)?;
    let shown = progress::for_service();
    let result = update(&request, hand_over, &shown, &|_| shown.close());
    shown.close();
    result
}

/// `None` where no job was started.
fn as_job(
    request: &Request,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<Option<Result<()>>> {
    if let Some(why) = place::stays(request) {
        tracing::debug!("the update runs in this process: {why}");
        return Ok(None);
    }
    let Some(asked) = JobRequest::of_client(request) else {
        tracing::debug!("the update runs in this process: the name of its source is not UTF-8");
        return Ok(None);
    };
    // The job outlives this process, but a signal to this process cancels it.
    let signal_guard = match SignalGuard::begin() {
        Ok(signal_guard) => signal_guard,
        Err(e) => {
            tracing::debug!("the update runs in this process: {e}");
            return Ok(None);
        }
    };
    let job = match Job::start(&request.paths, &asked) {
        Ok(job) => job,
        Err(NotStarted::Refused(e)) => return Ok(Some(Err(e))),
        Err(NotStarted::Unavailable(why)) => {
            // A signal that came meanwhile ends the update, with a result.
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
        // The job's log has it as an event.
        tracing::info!("{}", update::summary(request, done));
        installed(done);
    };
    // Signals stay deferred: one was meant for the job, and the result shows its effect.
    Ok(Some(follow::follow(job, &request.paths, progress, &on_installed)))
}

/// Whether a signal asks to end the update. A lost terminal, and what comes with that, does not.
fn is_unwanted() -> bool {
    use nix::sys::signal::Signal::{SIGINT, SIGQUIT, SIGTERM};
    !hung_up() && matches!(came(), Some(SIGINT | SIGQUIT | SIGTERM))
}
