//! The displayed state of a job (stage, progress, result), from the JSON lines of its process.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Code, Effect, Error, exit};
use crate::sys::command::End;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum JobKind {
    Update,
    Flash,
    Rollback,
    #[serde(rename = "mark-good")]
    MarkGood,
}

impl JobKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            JobKind::Update => "update",
            JobKind::Flash => "flash",
            JobKind::Rollback => "rollback",
            JobKind::MarkGood => "mark-good",
        }
    }

    /// First and last percent of a stage. The rest of an update is for the hooks, which report no progress.
    fn span(self, stage: &str) -> (u32, u32) {
        match (self, stage) {
            (JobKind::Update, "load" | "pull") => (0, 60),
            (JobKind::Update, "unpack") => (60, 80),
            (JobKind::Flash, "check") => (0, 20),
            (JobKind::Flash, "write") => (20, 60),
            (JobKind::Flash, "verify") => (60, 95),
            _ => (0, 0),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Running,
    Cancelling,
    Succeeded,
    Failed,
    Cancelled,
}

impl State {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            State::Running => "running",
            State::Cancelling => "cancelling",
            State::Succeeded => "succeeded",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
        }
    }

    pub(super) fn is_final(self) -> bool {
        matches!(self, State::Succeeded | State::Failed | State::Cancelled)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Failure {
    pub code: String,
    pub message: String,
    #[serde(deserialize_with = "or_empty")]
    pub object: String,
    pub hint: String,
    pub effect: String,
}

fn or_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(from)?.unwrap_or_default())
}

impl Failure {
    pub(super) fn of(e: &Error) -> Self {
        Failure {
            code: e.code().as_str().to_owned(),
            message: e.message(),
            object: e.subject().unwrap_or_default().to_owned(),
            hint: e.hint().to_owned(),
            effect: e.effect().as_str().to_owned(),
        }
    }

    /// One line: message, code, object and remedy.
    pub(super) fn text(&self) -> String {
        let Failure { message, code, object, hint, .. } = self;
        let object = if message.contains(object.as_str()) { String::new() } else { format!(" ({object})") };
        format!("{message} [{code}]{object}; {hint}")
    }

    /// Exit code of a verb with this error, where that of the process is unknown.
    fn exit(&self) -> u8 {
        let code = Code::named(&self.code).unwrap_or(Code::Io);
        exit::of(code, Effect::named(&self.effect).unwrap_or(Effect::Refused))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobState {
    pub stage: String,
    pub percent: u32,
    pub done: u64, // bytes of the stage
    pub total: u64,
    /// Seconds; -1 while unknown.
    pub eta: i64,
    pub state: State,
    pub error: Option<Failure>,
    pub exit: u8,
    pub result: Option<Value>,
    pub(super) base: (u32, u32),
    pub(super) wrote: bool,
}

impl JobState {
    pub(super) fn new() -> Self {
        JobState {
            stage: "start".to_owned(),
            percent: 0,
            done: 0,
            total: 0,
            eta: -1,
            state: State::Running,
            error: None,
            exit: 0,
            result: None,
            base: (0, 0),
            wrote: false,
        }
    }

    /// One output line of the process. Unknown lines are ignored.
    pub(super) fn hear(&mut self, kind: JobKind, reboot: bool, line: &str) {
        let Ok(Value::Object(line)) = serde_json::from_str(line) else { return };
        let text = |key: &str| line.get(key).and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| line.get(key).and_then(Value::as_u64);
        match text("event") {
            "stage" | "progress" => {
                let stage = text("stage");
                if self.stage != stage {
                    self.enter(kind, stage);
                }
                self.done = number("bytes_done").unwrap_or(self.done);
                self.total = number("bytes_total").unwrap_or(0);
                self.eta = number("eta").and_then(|n| i64::try_from(n).ok()).unwrap_or(-1);
                self.climb(number("percent").unwrap_or(0));
                if text("state") == "end" {
                    "install".clone_into(&mut self.stage);
                    (self.done, self.total, self.eta) = (0, 0, -1);
                }
            }
            "result" if line.get("ok") == Some(&Value::Bool(true)) => {
                let value = line.iter().find(|(key, _)| !matches!(key.as_str(), "event" | "version" | "ok"));
                self.result = Some(value.map_or(Value::Null, |(_, value)| value.clone()));
                self.error = None;
                // With the result every stage has ended, whatever was said of it.
                if reboot { "reboot" } else { "install" }.clone_into(&mut self.stage);
            }
            "result" => {
                self.error = Some(serde_json::from_value(Value::Object(line)).unwrap_or_default());
            }
            _ => {}
        }
    }

    fn enter(&mut self, kind: JobKind, stage: &str) {
        let (from, to) = kind.span(stage);
        self.base = (from.max(self.percent), to.max(self.percent));
        stage.clone_into(&mut self.stage);
        (self.done, self.total, self.eta) = (0, 0, -1);
        self.wrote |= kind == JobKind::Update || stage == "write";
    }

    /// Never decreases, and never reaches 100, which means success.
    fn climb(&mut self, of_stage: u64) {
        let (from, to) = self.base;
        let part = u64::from(to.saturating_sub(from)) * of_stage.min(100) / 100;
        let now = from.saturating_add(u32::try_from(part).unwrap_or(0));
        self.percent = self.percent.max(now.min(99));
    }

    /// `end`: of the process, where known. A job that was interrupted was cancelled: by a client, by an operator who stopped its unit, or by a
    /// shutdown.
    pub(super) fn close(&mut self, end: Option<End>) {
        let well = end.is_none_or(End::is_success);
        if self.result.is_some() && self.error.is_none() && well {
            (self.state, self.percent, self.exit) = (State::Succeeded, 100, 0);
        } else {
            let error = self.error.take().unwrap_or_else(|| Failure::of(&self.unsaid(end)));
            let interrupted = error.code == Code::Interrupted.as_str();
            self.state = if interrupted { State::Cancelled } else { State::Failed };
            self.exit = match end {
                Some(End::Status(status)) => u8::try_from(status).unwrap_or(1).max(1),
                _ => error.exit(),
            };
            self.error = Some(error);
        }
        "done".clone_into(&mut self.stage);
        self.eta = if self.state == State::Succeeded { 0 } else { -1 };
    }

    fn unsaid(&self, end: Option<End>) -> Error {
        let error = if end == Some(End::Signal(nix::libc::SIGTERM)) {
            Error::new(Code::Interrupted, "the job was cancelled").with_hint("run it again")
        } else {
            let why = end.map_or_else(|| "it no longer runs".to_owned(), |end| end.to_string());
            Error::new(Code::JobLost, "the process of the job ended without a result").because(why)
        };
        match (&self.result, self.wrote) {
            (Some(_), _) => error
                .and_also("the job's work was already complete")
                .with_hint("see `copal status`")
                .after_success(),
            (None, true) => error.after_write(),
            (None, false) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(stage: &str, state: &str, percent: &str) -> String {
        format!(
            r#"{{"event":"stage","version":1,"stage":"{stage}","state":"{state}","percent":{percent},"bytes_done":5,"bytes_total":null,"rate":null,"eta":null}}"#
        )
    }

    fn progress(stage: &str, percent: u8) -> String {
        format!(
            r#"{{"event":"progress","version":1,"stage":"{stage}","percent":{percent},"bytes_done":50,"bytes_total":100,"rate":1,"eta":9}}"#
        )
    }

    const DONE: &str = r#"{"event":"result","version":1,"ok":true,"update":{"slot":"B"}}"#;
    const REFUSED: &str = r#"{"event":"result","version":1,"ok":false,"code":"interrupted","message":"m","object":null,"hint":"h","effect":"written"}"#;

    #[test]
    fn an_error_on_one_line_has_its_four_parts() {
        let failure = |message: &str, object: &str| Failure {
            code: "busy".into(),
            message: message.into(),
            object: object.into(),
            hint: "wait; then call again".into(),
            effect: "refused".into(),
        };
        let all = failure("cannot begin: the update of job 1 is under way", "/job/1");
        let text = "cannot begin: the update of job 1 is under way [busy] (/job/1); wait; then call again";
        assert_eq!(all.text(), text);
        let named = failure("cannot read /a/b", "/a/b");
        assert_eq!(named.text(), "cannot read /a/b [busy]; wait; then call again");
    }

    #[test]
    fn percent_climbs_through_the_stages_and_100_is_success() {
        let mut shown = JobState::new();
        let mut seen = Vec::new();
        let lines = [
            stage("pull", "begin", "null"),
            progress("pull", 50),
            progress("pull", 40),
            stage("pull", "end", "100"),
            stage("unpack", "begin", "0"),
            progress("unpack", 99),
            stage("unpack", "end", "100"),
            "no json".into(),
            DONE.into(),
        ];
        for line in lines {
            shown.hear(JobKind::Update, false, &line);
            seen.push((shown.stage.clone(), shown.percent));
        }
        let expected = [
            ("pull", 0),
            ("pull", 30),
            ("pull", 30),
            ("install", 60),
            ("unpack", 60),
            ("unpack", 79),
            ("install", 80),
            ("install", 80),
            ("install", 80),
        ];
        assert_eq!(seen, expected.map(|(s, p)| (s.to_owned(), p)));
        assert!(!shown.state.is_final());
        shown.close(Some(End::Status(0)));
        assert_eq!((shown.percent, shown.state, shown.exit), (100, State::Succeeded, 0));
        assert_eq!(shown.result.unwrap()["slot"], "B");
    }

    #[test]
    fn a_stage_ends_with_the_result_at_the_latest() {
        let mut shown = JobState::new();
        shown.hear(JobKind::Update, false, &progress("unpack", 50));
        shown.hear(JobKind::Update, false, DONE);
        assert_eq!((shown.stage.as_str(), shown.state), ("install", State::Running));
    }

    #[test]
    fn what_a_stage_reports_is_shown() {
        let mut shown = JobState::new();
        shown.hear(JobKind::Flash, false, &progress("verify", 50));
        assert_eq!((shown.percent, shown.done, shown.total, shown.eta), (77, 50, 100, 9));
        shown.hear(JobKind::Flash, false, &progress("new", 50));
        assert_eq!((shown.percent, shown.stage.as_str()), (77, "new"));
    }

    #[test]
    fn an_interrupted_job_was_cancelled() {
        let close = |lines: &[&str], end| {
            let mut shown = JobState::new();
            lines.iter().for_each(|line| shown.hear(JobKind::Update, true, line));
            shown.close(end);
            let error = shown.error.clone().unwrap_or_default();
            (shown.state, shown.exit, error.code, error.effect)
        };
        let row = |state, exit, code: &str, effect: &str| (state, exit, code.to_owned(), effect.to_owned());
        let status = |n| Some(End::Status(n));
        assert_eq!(close(&[REFUSED], status(4)), row(State::Cancelled, 4, "interrupted", "written"));
        assert_eq!(close(&[REFUSED], None), row(State::Cancelled, 4, "interrupted", "written"));
        assert_eq!(close(&[DONE], status(0)), row(State::Succeeded, 0, "", ""));
        assert_eq!(close(&[DONE], None), row(State::Succeeded, 0, "", ""));
        // Before writing began; and while the job waited for the reboot.
        let term = Some(End::Signal(15));
        assert_eq!(close(&[], term), row(State::Cancelled, 3, "interrupted", "refused"));
        assert_eq!(close(&[DONE], term), row(State::Cancelled, 1, "interrupted", "completed"));
        assert_eq!(close(&[], None), row(State::Failed, 3, "job-lost", "refused"));
        assert_eq!(close(&[], Some(End::Signal(9))), row(State::Failed, 3, "job-lost", "refused"));
        let pull = stage("pull", "begin", "null");
        assert_eq!(close(&[&pull], Some(End::Signal(9))), row(State::Failed, 4, "job-lost", "written"));
        assert_eq!(close(&[DONE, REFUSED], status(1)).0, State::Cancelled);
    }

    #[test]
    fn a_job_that_is_done_and_waits_to_reboot_says_so() {
        let mut shown = JobState::new();
        shown.hear(JobKind::Update, true, DONE);
        assert_eq!((shown.stage.as_str(), shown.state), ("reboot", State::Running));
        assert!(shown.percent < 100);
    }
}
