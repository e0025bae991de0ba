//! A job on the bus.

use std::collections::HashMap;
use std::sync::Arc;

use zbus::{Variant, interface};

use super::core::Core;
use super::dbus_error::DbusError;
use crate::job::State;

pub(super) struct JobObject {
    core: Arc<Core>,
    id: u32,
}

impl JobObject {
    pub(super) fn new(core: Arc<Core>, id: u32) -> JobObject {
        JobObject { core, id }
    }

    fn state_of_job(&self) -> State {
        let job = self.core.job().filter(|j| j.id == self.id);
        job.map_or_else(State::new, |j| j.state)
    }
}

/// The parts of the error and the exit code; empty if the job has not failed.
fn error_of(state: &State) -> HashMap<&'static str, String> {
    let Some(error) = state.error.as_ref().filter(|_| state.status.is_final()) else { return HashMap::new() };
    HashMap::from([
        ("code", error.code_word().to_owned()),
        ("message", error.message()),
        ("object", error.subject().unwrap_or_default().to_owned()),
        ("hint", error.hint().to_owned()),
        ("effect", error.effect().as_str().to_owned()),
        ("exit", state.exit.to_string()),
    ])
}

fn result_of(state: &State) -> String {
    state.result.as_ref().filter(|v| !v.is_null()).map(ToString::to_string).unwrap_or_default()
}

pub(super) fn changes(before: &State, now: &State) -> HashMap<&'static str, Variant<'static>> {
    let mut changed = HashMap::new();
    let mut put = |name, differs: bool, value: Variant<'static>| {
        if differs {
            changed.insert(name, value);
        }
    };
    put("Stage", before.stage != now.stage, now.stage.as_str().into());
    put("Percent", before.percent != now.percent, now.percent.into());
    put("BytesDone", before.done != now.done, now.done.into());
    put("BytesTotal", before.total != now.total, now.total.into());
    put("Eta", before.eta != now.eta, now.eta.into());
    put("State", before.status != now.status, now.status.as_str().into());
    put("Error", error_of(before) != error_of(now), error_of(now).into());
    put("Result", result_of(before) != result_of(now), result_of(now).into());
    changed
}

#[interface(name = "io.balena.Copal1.Job", introspection_docs = false)]
impl JobObject {
    /// The job ends between two of its steps and reports a result.
    async fn cancel(&self) -> Result<(), DbusError> {
        Ok(self.core.cancel(self.id).await?)
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn id(&self) -> u32 {
        self.id
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn kind(&self) -> String {
        self.core.job_kind(self.id).to_owned()
    }

    #[zbus(property)]
    fn stage(&self) -> String {
        self.state_of_job().stage.to_string()
    }

    #[zbus(property)]
    fn percent(&self) -> u32 {
        self.state_of_job().percent
    }

    #[zbus(property)]
    fn bytes_done(&self) -> u64 {
        self.state_of_job().done
    }

    #[zbus(property)]
    fn bytes_total(&self) -> u64 {
        self.state_of_job().total
    }

    #[zbus(property)]
    fn eta(&self) -> i64 {
        self.state_of_job().eta
    }

    #[zbus(property)]
    fn state(&self) -> String {
        self.state_of_job().status.as_str().to_owned()
    }

    #[zbus(property)]
    fn error(&self) -> HashMap<String, String> {
        error_of(&self.state_of_job()).into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    #[zbus(property)]
    fn result(&self) -> String {
        result_of(&self.state_of_job())
    }
}
