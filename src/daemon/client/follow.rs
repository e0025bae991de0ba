//! Follows the job of an update to its end, from the files that it writes.

use std::thread;
use std::time::{Duration, Instant};

use super::is_unwanted;
use super::view::{self, View};
use crate::config::paths::Paths;
use crate::daemon::job_state::State;
use crate::daemon::unit::Job;
use crate::error::{Code, Error, Result};
use crate::progress::Progress;
use crate::update::Installed;
use crate::update::lock::Holder;

const LOOK: Duration = Duration::from_millis(200);
/// After a silence of this length, and then as often, systemd is asked whether the job's unit is still there.
const CHECK: Duration = Duration::from_secs(10);
/// How long a job may stay without a process, where systemd cannot be asked.
const TIMEOUT: Duration = Duration::from_secs(60);
/// At a shutdown, which ends this program too.
const LAST: Duration = Duration::from_secs(10);

pub(super) fn follow(
    mut job: Job,
    paths: &Paths,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<()> {
    let mut view = View::new(progress);
    let (mut reported, mut cancelled) = (false, None);
    let (mut heard, mut checked) = (Instant::now(), Instant::now());
    loop {
        if job.poll_each(|shown| view.show(shown)) {
            heard = Instant::now();
        }
        view.show(&job.shown);
        if !reported && let Some(done) = view::installed(&job.shown) {
            reported = true;
            installed(&done);
        }
        match job.shown.state {
            State::Running | State::Cancelling => {}
            State::Succeeded => return Ok(()),
            State::Failed | State::Cancelled => return Err(view::failure(&job.shown)),
        }
        if cancelled.is_none() && is_unwanted() {
            cancelled = Some(Instant::now());
            match job.files().cancel() {
                Ok(()) => {
                    tracing::warn!(
                        "cancelling the update; waiting until its present step is done, and undone"
                    );
                }
                // At a shutdown the bus may end first.
                Err(e) => tracing::warn!("{}", e.message()),
            }
        }
        if reported && cancelled.is_some_and(|since| since.elapsed() > LAST) {
            // The update is installed, and the reboot ends job and client.
            return Ok(());
        }
        let silent = heard.elapsed();
        if silent > CHECK && checked.elapsed() > CHECK {
            checked = Instant::now();
            match job.files().settle() {
                Ok(()) => {}
                // The lock shows that the job works.
                Err(_) if matches!(Holder::of(paths), Ok(Some(_))) => {}
                Err(e) if silent > TIMEOUT => {
                    let message = format!("cannot determine how the update of job {} ended", job.record.id);
                    return Err(Error::new(Code::JobLost, message).because(e).after_write());
                }
                Err(e) => tracing::debug!("job {}: {e}", job.record.id),
            }
        }
        thread::sleep(LOOK);
    }
}
