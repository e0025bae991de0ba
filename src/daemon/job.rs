use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use zbus::message::Header;
use zbus::{Variant, interface};

use super::callers::Callers;
use super::core::Core;
use super::dbus_error::DbusError;
use super::job_state::JobState;
use super::manager::check_root;

pub(super) struct Job {
    core: Arc<Core>,
    callers: Arc<Mutex<Callers>>,
    id: u32,
}

impl Job {
    pub(super) fn new(core: Arc<Core>, callers: Arc<Mutex<Callers>>, id: u32) -> Job {
        Job { core, callers, id }
    }

    fn shown(&self) -> JobState {
        let job = self.core.job().filter(|j| j.id == self.id);
        job.map_or_else(JobState::new, |j| j.shown)
    }
}

fn error(shown: &JobState) -> HashMap<&'static str, String> {
    let Some(error) = shown.error.as_ref().filter(|_| shown.state.is_final()) else { return HashMap::new() };
    HashMap::from([
        ("code", error.code.clone()),
        ("message", error.message.clone()),
        ("object", error.object.clone()),
        ("hint", error.hint.clone()),
        ("effect", error.effect.clone()),
        ("exit", shown.exit.to_string()),
    ])
}

fn result(shown: &JobState) -> String {
    shown.result.as_ref().filter(|v| !v.is_null()).map(ToString::to_string).unwrap_or_default()
}

pub(super) fn changes(before: &JobState, now: &JobState) -> HashMap<&'static str, Variant<'static>> {
    let mut changed = HashMap::new();
    let mut put = |name, differs: bool, value: Variant<'static>| {
        if differs {
            changed.insert(name, value);
        }
    };
    put("Stage", before.stage != now.stage, now.stage.clone().into());
    put("Percent", before.percent != now.percent, now.percent.into());
    put("BytesDone", before.done != now.done, now.done.into());
    put("BytesTotal", before.total != now.total, now.total.into());
    put("Eta", before.eta != now.eta, now.eta.into());
    put("State", before.state != now.state, now.state.as_str().into());
    put("Error", error(before) != error(now), error(now).into());
    put("Result", result(before) != result(now), result(now).into());
    changed
}

#[interface(name = "io.balena.Copal1.Job", introspection_docs = false)]
impl Job {
    /// The job ends between two of its steps, with a result.
    async fn cancel(&self, #[zbus(header)] header: Header<'_>) -> Result<(), DbusError> {
        check_root(&self.callers, &header, "cancel a job")?;
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
        self.shown().stage
    }

    #[zbus(property)]
    fn percent(&self) -> u32 {
        self.shown().percent
    }

    #[zbus(property)]
    fn bytes_done(&self) -> u64 {
        self.shown().done
    }

    #[zbus(property)]
    fn bytes_total(&self) -> u64 {
        self.shown().total
    }

    #[zbus(property)]
    fn eta(&self) -> i64 {
        self.shown().eta
    }

    #[zbus(property)]
    fn state(&self) -> String {
        self.shown().state.as_str().to_owned()
    }

    #[zbus(property)]
    fn error(&self) -> HashMap<String, String> {
        error(&self.shown()).into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    #[zbus(property)]
    fn result(&self) -> String {
        result(&self.shown())
    }
}
