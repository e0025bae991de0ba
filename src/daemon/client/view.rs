//! A job's state, as the client shows it.

use crate::daemon::job_state::{JobState, State};
use crate::error::{Code, Effect, Error};
use crate::progress::{Progress, Stage};
use crate::update::Installed;

/// `None` for a stage without progress.
fn stage_of(job: &JobState) -> Option<Stage> {
    const SHOWN: [Stage; 6] =
        [Stage::Check, Stage::Write, Stage::Verify, Stage::Load, Stage::Pull, Stage::Unpack];
    SHOWN.into_iter().find(|s| s.to_string() == job.stage)
}

pub(super) fn installed(job: &JobState) -> Option<Installed> {
    serde_json::from_value(job.result.clone()?).ok()
}

/// The error that the job itself has reported.
pub(super) fn failure(job: &JobState) -> Error {
    let failure = job.error.clone().unwrap_or_default();
    let message = if failure.message.is_empty() { "the update failed" } else { &failure.message };
    let mut error = Error::new(Code::named(&failure.code).unwrap_or(Code::UpdateFailed), message);
    if !failure.object.is_empty() {
        error = error.object(failure.object);
    }
    if !failure.hint.is_empty() {
        error = error.with_hint(failure.hint);
    }
    error.with_effect(Effect::named(&failure.effect).unwrap_or(Effect::Written))
}

/// Shows the job's progress like the progress of an update in this process.
pub(super) struct View<'a> {
    progress: &'a dyn Progress,
    stage: Option<Stage>,
    done: u64,
    total: u64,
}

impl<'a> View<'a> {
    pub(super) fn new(progress: &'a dyn Progress) -> Self {
        View { progress, stage: None, done: 0, total: 0 }
    }

    pub(super) fn show(&mut self, job: &JobState) {
        if matches!(job.state, State::Failed | State::Cancelled) {
            return;
        }
        let stage = stage_of(job);
        if stage != self.stage {
            self.finish();
            if let Some(stage) = stage {
                self.progress.begin(stage, (job.total > 0).then_some(job.total));
                (self.done, self.total) = (0, job.total);
            }
            self.stage = stage;
        }
        if stage.is_some() {
            if job.total > self.total {
                self.progress.expect(job.total);
                self.total = job.total;
            }
            self.progress.advance(job.done.saturating_sub(self.done));
            self.done = self.done.max(job.done);
        }
    }

    /// The job is past the stage, so the stage has succeeded: progress that was not reported was done, too.
    fn finish(&mut self) {
        if self.stage.take().is_some() {
            self.progress.advance(self.total.saturating_sub(self.done));
            self.progress.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::daemon::job_state::Failure;

    #[derive(Default)]
    struct Seen(Mutex<Vec<String>>);

    impl Progress for Seen {
        fn begin(&self, stage: Stage, total: Option<u64>) {
            self.0.lock().unwrap().push(format!("{stage} {total:?}"));
        }
        fn expect(&self, total: u64) {
            self.0.lock().unwrap().push(format!("of {total}"));
        }
        fn advance(&self, bytes: u64) {
            if bytes > 0 {
                self.0.lock().unwrap().push(format!("+{bytes}"));
            }
        }
        fn finish(&self) {
            self.0.lock().unwrap().push("done".into());
        }
    }

    fn job(state: State, stage: &str, done: u64, total: u64) -> JobState {
        JobState { state, stage: stage.into(), done, total, ..JobState::new() }
    }

    #[test]
    fn stages_follow_each_other_as_in_the_job() {
        let given = Seen::default();
        let mut view = View::new(&given);
        for (stage, done, total) in [
            ("start", 0, 0),
            ("load", 3, 10),
            ("load", 3, 10),
            ("load", 9, 10),
            ("unpack", 1, 0),
            ("unpack", 2, 5),
            ("unpack", 1, 5),
            ("install", 0, 0),
        ] {
            view.show(&job(State::Running, stage, done, total));
        }
        view.show(&job(State::Succeeded, "done", 0, 0));
        let expected =
            ["load Some(10)", "+3", "+6", "+1", "done", "unpack None", "+1", "of 5", "+1", "+3", "done"];
        assert_eq!(*given.0.lock().unwrap(), expected);
    }

    #[test]
    fn a_stage_that_failed_has_no_end() {
        let given = Seen::default();
        let mut view = View::new(&given);
        view.show(&job(State::Running, "load", 1, 10));
        view.show(&job(State::Failed, "done", 1, 10));
        assert_eq!(*given.0.lock().unwrap(), ["load Some(10)", "+1"]);
    }

    #[test]
    fn the_error_is_the_one_that_was_reported() {
        let given = Error::new(Code::HookFailed, "cannot run x").object("x").with_hint("fix x").after_write();
        let reported = JobState { error: Some(Failure::of(&given)), ..JobState::new() };
        let failure = failure(&reported);
        assert_eq!(failure.to_string(), given.to_string());
        assert_eq!((failure.effect(), failure.subject()), (given.effect(), given.subject()));
        let bare = super::failure(&JobState::new());
        assert_eq!((bare.code(), bare.effect()), (Code::UpdateFailed, Effect::Written));
    }
}
