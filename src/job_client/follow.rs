//! Follows the job of an update to its end, from the files that it writes.

use std::thread;
use std::time::{Duration, Instant};

use super::is_cancelled;
use super::view::{self, View};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::job::Job;
use crate::job::lock::Holder;
use crate::progress::Progress;
use crate::update::Installed;

const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// After this time without an event, and in this interval, the client asks systemd whether the job's unit still runs.
const UNIT_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// A job without a process counts as lost after this time, if systemd cannot be asked.
const LOST_JOB_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two attempts to cancel the job.
const CANCEL_INTERVAL: Duration = Duration::from_secs(3);
/// Limit of all attempts. A shutdown also ends this program.
const CANCEL_LIMIT: Duration = Duration::from_secs(10);

/// Attempts to cancel the job: systemd may be slow, or leave the bus for a moment.
struct Cancel {
    first: Instant,
    last: Instant,
    accepted: bool,
}

impl Cancel {
    fn is_due(&self, now: Instant) -> bool {
        !self.accepted && now.duration_since(self.last) >= CANCEL_INTERVAL
    }

    fn is_in_vain(&self, now: Instant) -> bool {
        !self.accepted && now.duration_since(self.first) > CANCEL_LIMIT
    }

    fn attempt(before: Option<&Cancel>, job: &Job) -> Cancel {
        let now = Instant::now();
        let result = job.files().cancel();
        match &result {
            Ok(()) => {
                tracing::warn!("cancelling the update; waiting until its present step is done, and undone");
            }
            Err(e) if before.is_some() => tracing::debug!("{}", e.message()),
            Err(e) => tracing::warn!("{}; trying again", e.message()),
        }
        Cancel { first: before.map_or(now, |c| c.first), last: Instant::now(), accepted: result.is_ok() }
    }
}

pub(super) fn follow(
    mut job: Job,
    paths: &Paths,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<()> {
    let mut view = View::new(progress);
    let (mut reported, mut cancel): (bool, Option<Cancel>) = (false, None);
    let (mut last_event, mut checked) = (Instant::now(), Instant::now());
    loop {
        if job.poll_each(|state| view.show(state)) {
            last_event = Instant::now();
        }
        view.show(&job.state);
        if !reported && let Some(done) = view::installed(&job.state) {
            reported = true;
            installed(&done);
        }
        if let Some(outcome) = job.state.outcome() {
            return outcome;
        }
        if is_cancelled() && cancel.as_ref().is_none_or(|c| c.is_due(Instant::now())) {
            cancel = Some(Cancel::attempt(cancel.as_ref(), &job));
        }
        if reported && cancel.as_ref().is_some_and(|c| c.is_in_vain(Instant::now())) {
            // At a shutdown the bus may end first; the reboot then ends job and client.
            tracing::warn!("the update is installed, and its job {} reboots the device", job.record.id);
            return Ok(());
        }
        let silent = last_event.elapsed();
        if silent > UNIT_CHECK_INTERVAL && checked.elapsed() > UNIT_CHECK_INTERVAL {
            checked = Instant::now();
            match job.files().settle() {
                Ok(()) => {}
                // The lock shows that the job works.
                Err(_) if matches!(Holder::of(paths), Ok(Some(_))) => {}
                Err(e) if silent > LOST_JOB_TIMEOUT => {
                    let message = format!("cannot determine how the update of job {} ended", job.record.id);
                    return Err(Error::new(Code::JobLost, message).because(e).after_write());
                }
                Err(e) => tracing::debug!("job {}: {e}", job.record.id),
            }
        }
        thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_job_that_cannot_be_cancelled_is_left() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let refused = Cancel { first: now, last: after(6), accepted: false };
        assert_eq!([7, 8, 9, 12].map(|s| refused.is_due(after(s))), [false, false, true, true]);
        assert_eq!([9, 10, 11].map(|s| refused.is_in_vain(after(s))), [false, false, true]);
        let accepted = Cancel { accepted: true, ..refused };
        // The job ends soon, and its result shows how.
        assert!(!accepted.is_due(after(99)) && !accepted.is_in_vain(after(99)));
    }
}
