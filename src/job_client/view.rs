//! Shows the state of a job in the client.

use crate::job::{JobStatus, Stage, State};
use crate::progress::Progress;
use crate::update::Installed;

pub(super) fn installed(state: &State) -> Option<Installed> {
    serde_json::from_value(state.result.clone()?).ok()
}

/// Reports the job's progress as if the update ran in this process.
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

    pub(super) fn show(&mut self, state: &State) {
        if matches!(state.status, JobStatus::Failed | JobStatus::Cancelled) {
            return;
        }
        let stage = Some(state.stage).filter(|stage| stage.has_progress());
        if stage != self.stage {
            self.finish();
            if let Some(stage) = stage {
                self.progress.begin(stage, (state.total > 0).then_some(state.total));
                (self.done, self.total) = (0, state.total);
            }
            self.stage = stage;
        }
        if stage.is_some() {
            if state.total != self.total {
                self.progress.expect((state.total > 0).then_some(state.total));
                self.total = state.total;
            }
            self.progress.advance(state.done.saturating_sub(self.done));
            self.done = self.done.max(state.done);
        }
    }

    /// The job has left the stage, so the stage has succeeded. Reports the rest of its bytes.
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

    #[derive(Default)]
    struct Calls(Mutex<Vec<String>>);

    impl Progress for Calls {
        fn begin(&self, stage: Stage, total: Option<u64>) {
            self.0.lock().unwrap().push(format!("{stage} {total:?}"));
        }
        fn expect(&self, total: Option<u64>) {
            self.0.lock().unwrap().push(format!("of {total:?}"));
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

    fn state(status: JobStatus, stage: Stage, done: u64, total: u64) -> State {
        let mut state = State::new();
        (state.status, state.stage, state.done, state.total) = (status, stage, done, total);
        state
    }

    #[test]
    fn stages_follow_each_other_as_in_the_job() {
        let given = Calls::default();
        let mut view = View::new(&given);
        for (stage, done, total) in [
            (Stage::Start, 0, 0),
            (Stage::Load, 3, 10),
            (Stage::Load, 3, 10),
            (Stage::Load, 9, 10),
            (Stage::Unpack, 1, 0),
            (Stage::Unpack, 2, 5),
            (Stage::Unpack, 1, 5),
            (Stage::Install, 0, 0),
        ] {
            view.show(&state(JobStatus::Running, stage, done, total));
        }
        view.show(&state(JobStatus::Succeeded, Stage::Done, 0, 0));
        let expected = [
            "load Some(10)",
            "+3",
            "+6",
            "+1",
            "done",
            "unpack None",
            "+1",
            "of Some(5)",
            "+1",
            "+3",
            "done",
        ];
        assert_eq!(*given.0.lock().unwrap(), expected);
    }

    #[test]
    fn a_stage_that_failed_has_no_end() {
        let given = Calls::default();
        let mut view = View::new(&given);
        view.show(&state(JobStatus::Running, Stage::Load, 1, 10));
        view.show(&state(JobStatus::Failed, Stage::Done, 1, 10));
        assert_eq!(*given.0.lock().unwrap(), ["load Some(10)", "+1"]);
    }
}
