use std::collections::HashMap;

use zbus::Message;
use zbus::wire::OwnedVariant;

use crate::daemon::job_state::{Failure, JobState};
use crate::error::{Code, Effect, Error};
use crate::progress::{Progress, Stage};
use crate::update::Installed;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub state: JobStatus,
    pub stage: String,
    pub done: u64,
    pub total: u64,
    /// The installed update, as JSON; empty while there is none.
    pub result: String,
    pub error: HashMap<String, String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobStatus {
    #[default]
    Running,
    Succeeded,
    Failed,
}

impl JobStatus {
    fn named(word: &str) -> JobStatus {
        match word {
            "succeeded" => JobStatus::Succeeded,
            "failed" | "cancelled" => JobStatus::Failed,
            _ => JobStatus::Running,
        }
    }
}

impl Job {
    pub(super) fn of(all: &HashMap<String, OwnedVariant>) -> Job {
        let text = |key: &str| {
            all.get(key).and_then(|v| v.downcast_ref::<&str>().ok()).unwrap_or_default().to_owned()
        };
        let number = |key: &str| all.get(key).and_then(|v| v.downcast_ref::<u64>().ok()).unwrap_or(0);
        let error = all.get("Error").and_then(|v| v.try_clone().ok()).and_then(|v| v.try_into().ok());
        Job {
            state: JobStatus::named(&text("State")),
            stage: text("Stage"),
            done: number("BytesDone"),
            total: number("BytesTotal"),
            result: text("Result"),
            error: error.unwrap_or_default(),
        }
    }

    pub(super) fn recorded(shown: &JobState) -> Job {
        let error = shown.error.iter().flat_map(|e| {
            let texts = [&e.code, &e.message, &e.object, &e.hint, &e.effect].map(String::clone);
            ["code", "message", "object", "hint", "effect"].map(str::to_owned).into_iter().zip(texts)
        });
        Job {
            state: JobStatus::named(shown.state.as_str()),
            stage: shown.stage.clone(),
            done: shown.done,
            total: shown.total,
            result: shown.result.as_ref().map(ToString::to_string).unwrap_or_default(),
            error: error.collect(),
        }
    }

    /// `None` for a stage without progress.
    fn stage(&self) -> Option<Stage> {
        const SHOWN: [Stage; 6] =
            [Stage::Check, Stage::Write, Stage::Verify, Stage::Load, Stage::Pull, Stage::Unpack];
        SHOWN.into_iter().find(|s| s.to_string() == self.stage)
    }

    pub(super) fn installed(&self) -> Option<Installed> {
        serde_json::from_str(&self.result).ok()
    }

    /// The error that the update itself has reported.
    pub(super) fn failure(&self) -> Error {
        let text = |key: &str| self.error.get(key).map(String::as_str).unwrap_or_default();
        let effect = Effect::named(text("effect")).unwrap_or(Effect::Written);
        error(text("code"), text("message"), text("object"), text("hint")).with_effect(effect)
    }
}

/// An error answer of the daemon: the code is in its name, everything else in its body. Nothing was changed.
pub(super) fn refusal(code: &str, answer: &Message) -> Error {
    let text = answer.body().deserialize::<(String,)>().map(|(text,)| text).unwrap_or_default();
    let Failure { message, object, hint, .. } = Failure::parse(code, &text);
    error(code, &message, &object, &hint)
}

fn error(code: &str, message: &str, object: &str, hint: &str) -> Error {
    let message = if message.is_empty() {
        format!("the daemon refused the update: {code}")
    } else {
        message.to_owned()
    };
    let mut error = Error::new(Code::named(code).unwrap_or(Code::UpdateFailed), message);
    if !object.is_empty() {
        error = error.object(object);
    }
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

/// Shows the job's progress as that of an update in this process.
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

    pub(super) fn show(&mut self, job: &Job) {
        if job.state == JobStatus::Failed {
            return;
        }
        let stage = job.stage();
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

    #[derive(Default)]
    struct CurrentJob(Mutex<Vec<String>>);

    impl Progress for CurrentJob {
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

    fn job(state: JobStatus, stage: &str, done: u64, total: u64) -> Job {
        Job { state, stage: stage.into(), done, total, ..Job::default() }
    }

    #[test]
    fn stages_follow_each_other_as_in_the_job() {
        let given = CurrentJob::default();
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
            view.show(&job(JobStatus::Running, stage, done, total));
        }
        view.show(&job(JobStatus::Succeeded, "done", 0, 0));
        let expected =
            ["load Some(10)", "+3", "+6", "+1", "done", "unpack None", "+1", "of 5", "+1", "+3", "done"];
        assert_eq!(*given.0.lock().unwrap(), expected);
    }

    #[test]
    fn a_stage_that_failed_has_no_end() {
        let given = CurrentJob::default();
        let mut view = View::new(&given);
        view.show(&job(JobStatus::Running, "load", 1, 10));
        view.show(&job(JobStatus::Failed, "done", 1, 10));
        assert_eq!(*given.0.lock().unwrap(), ["load Some(10)", "+1"]);
    }

    #[test]
    fn the_error_is_the_one_that_was_reported() {
        let given = Error::new(Code::HookFailed, "cannot run x").object("x").with_hint("fix x").after_write();
        let pairs = [
            ("code", given.code().as_str()),
            ("message", &given.message()),
            ("object", "x"),
            ("hint", given.hint()),
            ("effect", given.effect().as_str()),
        ];
        let error = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let failure = Job { error, ..Job::default() }.failure();
        assert_eq!(failure.to_string(), given.to_string());
        assert_eq!((failure.effect(), failure.subject()), (given.effect(), given.subject()));
        let bare = Job::default().failure();
        assert_eq!((bare.code(), bare.effect()), (Code::UpdateFailed, Effect::Written));
    }
}
