//! The state of a job, derived from the events of its process and from its end.

use serde_json::Value;

use super::event::{Edge, Event, Stage, StageProgress};
use super::spec::Spec;
use crate::error::{Code, Error, Result, exit};
use crate::sys::command::End;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobStatus {
    Running,
    Cancelling,
    Succeeded,
    Failed,
    Cancelled,
}

impl JobStatus {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            JobStatus::Running => "running",
            JobStatus::Cancelling => "cancelling",
            JobStatus::Succeeded => "succeeded",
            JobStatus::Failed => "failed",
            JobStatus::Cancelled => "cancelled",
        }
    }

    pub(crate) fn is_final(self) -> bool {
        matches!(self, JobStatus::Succeeded | JobStatus::Failed | JobStatus::Cancelled)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct State {
    pub stage: Stage,
    pub percent: u32,
    pub done: u64, // bytes of the stage
    pub total: u64,
    /// Seconds; -1 while unknown.
    pub eta: i64,
    pub status: JobStatus,
    pub error: Option<Error>,
    pub exit: u8,
    /// The result of the verb; null for a verb without a result.
    pub result: Option<Value>,
    /// First and last percent of the stage.
    span: (u32, u32),
    has_written: bool,
}

impl State {
    pub(crate) const fn new() -> Self {
        State {
            stage: Stage::Start,
            percent: 0,
            done: 0,
            total: 0,
            eta: -1,
            status: JobStatus::Running,
            error: None,
            exit: 0,
            result: None,
            span: (0, 0),
            has_written: false,
        }
    }

    /// `None` while the job runs.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        match self.status {
            JobStatus::Running | JobStatus::Cancelling => None,
            JobStatus::Succeeded => Some(Ok(())),
            JobStatus::Failed | JobStatus::Cancelled => {
                Some(Err(self.error.clone().unwrap_or_else(|| self.missing_result(None))))
            }
        }
    }

    pub(super) fn apply(&mut self, spec: &Spec, event: Event) {
        match event {
            Event::Stage(progress) => self.advance(spec, &progress),
            Event::Finding(..) => {}
            Event::Result(Ok(entry)) => {
                self.result = Some(entry.map_or(Value::Null, |(_, value)| value));
                self.error = None;
                // The result ends every stage, even without a line for its end.
                self.stage = if spec.reboots() { Stage::Reboot } else { Stage::Install };
            }
            Event::Result(Err(e)) => self.error = Some(e),
        }
    }

    fn advance(&mut self, spec: &Spec, progress: &StageProgress) {
        if self.stage != progress.stage {
            self.enter(progress.stage);
            let (from, to) = spec.span(progress.stage);
            self.span = (from.max(self.percent), to.max(self.percent));
            self.has_written |= matches!(spec, Spec::Update(_)) || progress.stage == Stage::Write;
        }
        self.done = progress.bytes_done;
        self.total = progress.bytes_total.unwrap_or(0);
        let eta = match spec {
            Spec::Flash(_) => progress.job_eta.filter(|_| !progress.job_eta_is_least),
            _ => progress.eta,
        };
        self.eta = eta.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1);
        match (spec, progress.job_percent) {
            // Its stages follow each other, and its percentage covers all of them.
            (Spec::Flash(_), Some(percent)) => self.percent = self.percent.max(u32::from(percent).min(99)),
            _ => self.climb(progress.percent.unwrap_or(0)),
        }
        if progress.state == Some(Edge::End) {
            self.enter(Stage::Install);
        }
    }

    fn enter(&mut self, stage: Stage) {
        (self.stage, self.done, self.total, self.eta) = (stage, 0, 0, -1);
    }

    /// The percentage never decreases. 100 means success.
    fn climb(&mut self, of_stage: u8) {
        let (from, to) = self.span;
        let part = to.saturating_sub(from) * u32::from(of_stage.min(100)) / 100;
        self.percent = self.percent.max(from.saturating_add(part).min(99));
    }

    /// `end`: the end of the process, if known. An interrupted job counts as cancelled: a client, an operator who stopped the unit, or a
    /// shutdown has interrupted it.
    pub(super) fn close(&mut self, end: Option<End>) {
        let well = end.is_none_or(End::is_success);
        if self.result.is_some() && self.error.is_none() && well {
            (self.status, self.percent, self.exit) = (JobStatus::Succeeded, 100, 0);
        } else {
            let error = self.error.take().unwrap_or_else(|| self.missing_result(end));
            let interrupted = error.code() == Code::Interrupted;
            self.status = if interrupted { JobStatus::Cancelled } else { JobStatus::Failed };
            self.exit = match end {
                Some(End::Status(status)) => u8::try_from(status).unwrap_or(1).max(1),
                _ => exit::of_verb(&error),
            };
            self.error = Some(error);
        }
        self.stage = Stage::Done;
        self.eta = if self.status == JobStatus::Succeeded { 0 } else { -1 };
    }

    fn missing_result(&self, end: Option<End>) -> Error {
        let error = if end == Some(End::Signal(nix::libc::SIGTERM)) {
            Error::new(Code::Interrupted, "the job was cancelled").with_hint("run it again")
        } else {
            let why = end.map_or_else(|| "it no longer runs".to_owned(), |end| end.to_string());
            Error::new(Code::JobLost, "the process of the job ended without a result").because(why)
        };
        match (&self.result, self.has_written) {
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
    use super::super::spec::{FlashSpec, Source, UpdateSpec};
    use super::*;
    use crate::error::Effect;

    fn update(reboot: bool) -> Spec {
        Spec::Update(UpdateSpec { reboot, ..UpdateSpec::new(Source::Reference("a:1".into())) })
    }

    fn progress(stage: Stage, percent: u8) -> Event {
        let eta = Some(9);
        Event::Stage(StageProgress {
            stage,
            state: None,
            percent: Some(percent),
            bytes_done: 50,
            bytes_total: Some(100),
            rate: Some(1),
            eta,
            job_percent: None,
            job_eta: None,
            job_eta_is_least: false,
        })
    }

    fn edge(stage: Stage, state: Edge, percent: Option<u8>) -> Event {
        Event::Stage(StageProgress {
            stage,
            state: Some(state),
            percent,
            bytes_done: 5,
            bytes_total: None,
            rate: None,
            eta: None,
            job_percent: None,
            job_eta: None,
            job_eta_is_least: false,
        })
    }

    fn done() -> Event {
        Event::Result(Ok(Some(("update".into(), serde_json::json!({ "slot": "B" })))))
    }

    fn ended() -> Event {
        Event::Result(Err(Error::new(Code::Interrupted, "m").with_hint("h").after_write()))
    }

    #[test]
    fn percent_climbs_through_the_stages_and_100_is_success() {
        let mut state = State::new();
        let mut steps = Vec::new();
        for event in [
            edge(Stage::Pull, Edge::Begin, None),
            progress(Stage::Pull, 50),
            progress(Stage::Pull, 40),
            edge(Stage::Pull, Edge::End, Some(100)),
            edge(Stage::Unpack, Edge::Begin, Some(0)),
            progress(Stage::Unpack, 99),
            edge(Stage::Unpack, Edge::End, Some(100)),
            Event::Finding("x".into(), Value::Null),
            done(),
        ] {
            state.apply(&update(false), event);
            steps.push((state.stage, state.percent));
        }
        let expected = [
            (Stage::Pull, 0),
            (Stage::Pull, 30),
            (Stage::Pull, 30),
            (Stage::Install, 60),
            (Stage::Unpack, 60),
            (Stage::Unpack, 79),
            (Stage::Install, 80),
            (Stage::Install, 80),
            (Stage::Install, 80),
        ];
        assert_eq!(steps, expected);
        assert!(!state.status.is_final());
        state.close(Some(End::Status(0)));
        assert_eq!((state.percent, state.status, state.exit), (100, JobStatus::Succeeded, 0));
        assert_eq!(state.result.unwrap()["slot"], "B");
    }

    #[test]
    fn a_stage_ends_with_the_result_at_the_latest() {
        let mut state = State::new();
        state.apply(&update(false), progress(Stage::Unpack, 50));
        state.apply(&update(false), done());
        assert_eq!((state.stage, state.status), (Stage::Install, JobStatus::Running));
    }

    #[test]
    fn what_a_stage_reports_is_shown() {
        let mut state = State::new();
        let flash = Spec::Flash(FlashSpec::default());
        state.apply(&flash, progress(Stage::Verify, 50));
        assert_eq!((state.percent, state.done, state.total, state.eta), (77, 50, 100, -1));
        // Those of the whole job count, but no time that is the least.
        for (job_eta_is_least, eta) in [(false, 60), (true, -1)] {
            let Event::Stage(of_stage) = progress(Stage::Verify, 60) else { unreachable!() };
            let of_job =
                StageProgress { job_percent: Some(80), job_eta: Some(60), job_eta_is_least, ..of_stage };
            state.apply(&flash, Event::Stage(of_job));
            assert_eq!((state.percent, state.eta), (80, eta));
        }
        state.apply(&flash, progress(Stage::Load, 50));
        assert_eq!((state.percent, state.stage), (80, Stage::Load));
    }

    #[test]
    fn a_stage_of_another_release_moves_no_percentage_and_counts_as_written_for_an_update() {
        let line = r#"{"event":"progress","version":1,"stage":"new","percent":50,"bytes_done":50,"bytes_total":100,"rate":1,"eta":9}"#;
        let unknown = Event::of_line(line).unwrap();
        let mut state = State::new();
        state.apply(&Spec::Flash(FlashSpec::default()), progress(Stage::Verify, 50));
        state.apply(&Spec::Flash(FlashSpec::default()), unknown.clone());
        assert_eq!((state.percent, state.stage), (77, Stage::Install));

        for (spec, effect) in
            [(update(false), Effect::Written), (Spec::Flash(FlashSpec::default()), Effect::Refused)]
        {
            let mut state = State::new();
            state.apply(&spec, unknown.clone());
            state.close(Some(End::Signal(9)));
            assert_eq!(state.error.unwrap().effect(), effect, "{spec:?}");
        }
    }

    #[test]
    fn an_interrupted_job_was_cancelled() {
        let close = |events: &[Event], end| {
            let mut state = State::new();
            events.iter().for_each(|event| state.apply(&update(true), event.clone()));
            state.close(end);
            let outcome = state.outcome().unwrap();
            (state.status, state.exit, outcome.err().map(|e| (e.code(), e.effect())))
        };
        let status = |n| Some(End::Status(n));
        let interrupted = |effect| Some((Code::Interrupted, effect));
        let cancelled = (JobStatus::Cancelled, 4, interrupted(Effect::Written));
        assert_eq!(close(&[ended()], status(4)), cancelled);
        assert_eq!(close(&[ended()], None), cancelled);
        assert_eq!(close(&[done()], status(0)), (JobStatus::Succeeded, 0, None));
        assert_eq!(close(&[done()], None), (JobStatus::Succeeded, 0, None));
        // Before writing began; and while the job waited for the reboot.
        let term = Some(End::Signal(15));
        assert_eq!(close(&[], term), (JobStatus::Cancelled, 3, interrupted(Effect::Refused)));
        assert_eq!(close(&[done()], term), (JobStatus::Cancelled, 1, interrupted(Effect::Completed)));
        let lost = |exit, effect| (JobStatus::Failed, exit, Some((Code::JobLost, effect)));
        assert_eq!(close(&[], None), lost(3, Effect::Refused));
        assert_eq!(close(&[], Some(End::Signal(9))), lost(3, Effect::Refused));
        let pull = edge(Stage::Pull, Edge::Begin, None);
        assert_eq!(close(&[pull], Some(End::Signal(9))), lost(4, Effect::Written));
        assert_eq!(close(&[done(), ended()], status(1)).0, JobStatus::Cancelled);
    }

    #[test]
    fn a_job_that_is_done_and_waits_to_reboot_says_so() {
        let mut state = State::new();
        state.apply(&update(true), done());
        assert_eq!((state.stage, state.status), (Stage::Reboot, JobStatus::Running));
        assert!(state.percent < 100);
    }
}
