//! Signals on the bus. Each change is sent once, and the last state is always sent.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use zbus::names::InterfaceName;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, ObjectPath, Variant, fdo};

use super::core::{Core, ShownJob};
use super::dbus_error::text_of;
use super::job_object;
use super::manager::{self, Manager};
use super::snapshot::{Snapshot, index};
use super::{JOB_INTERFACE, MANAGER_INTERFACE, OBJECT_PATH, SLOT_INTERFACE, slot_object};
use crate::job::State;
use crate::job::record::object_path;
use crate::slot::Slot;

pub(super) struct Signals {
    snapshot: Option<Snapshot>,
    error: String,
    job: Option<ShownJob>,
}

impl Signals {
    /// Clients read the state when they connect, so the present state is not sent as a change.
    pub(super) fn new(core: &Core) -> Signals {
        Signals { snapshot: None, error: core.last_error(), job: core.job() }
    }

    /// Whether the device must be read again, because the job has reached another stage or its end.
    pub(super) fn is_due(&self, core: &Core) -> bool {
        let stage = |job: &Option<ShownJob>| job.as_ref().map(|j| (j.id, j.state.stage));
        stage(&self.job) != stage(&core.job())
    }

    /// A change that was not sent is sent again by the next call.
    pub(super) async fn emit(&mut self, core: &Arc<Core>, connection: &Connection) -> zbus::Result<()> {
        let (snapshot, error, job) = (core.snapshot(), core.last_error(), core.job());
        if let Some(now) = &job {
            let same = self.job.as_ref().filter(|before| before.id == now.id);
            // Clients have read the first state of a new job.
            let start = State::new();
            let before = same.map_or(&start, |j| &j.state);
            changed(connection, &object_path(now.id), JOB_INTERFACE, job_object::changes(before, &now.state))
                .await?;
        }
        self.job = job;
        if let Some(before) = &self.snapshot {
            for slot in [Slot::A, Slot::B] {
                let (Some(b), Some(n)) = (before.slots.get(index(slot)), snapshot.slots.get(index(slot)))
                else {
                    continue;
                };
                changed(connection, &slot_object::path(slot), SLOT_INTERFACE, slot_object::changes(b, n))
                    .await?;
            }
        }
        let before = (self.snapshot.as_ref().unwrap_or(&snapshot), self.error.as_str());
        let changes = manager::changes(before, (&snapshot, &error));
        changed(connection, OBJECT_PATH, MANAGER_INTERFACE, changes).await?;
        (self.snapshot, self.error) = (Some(snapshot), error);
        match &self.job {
            Some(job) if core.take_end() => removed(connection, job).await,
            _ => Ok(()),
        }
    }
}

async fn changed(
    connection: &Connection,
    path: &str,
    interface: &'static str,
    changes: HashMap<&'static str, Variant<'static>>,
) -> zbus::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let emitter = SignalEmitter::new(connection, path)?;
    let interface = InterfaceName::from_static_str(interface)?;
    fdo::Properties::properties_changed(&emitter, interface, changes, Cow::Borrowed(&[])).await
}

/// After all property changes of the job.
async fn removed(connection: &Connection, job: &ShownJob) -> zbus::Result<()> {
    let emitter = SignalEmitter::new(connection, OBJECT_PATH)?;
    let path = ObjectPath::try_from(object_path(job.id))?;
    let error = job.state.error.as_ref().map(text_of).unwrap_or_default();
    Manager::job_removed(&emitter, job.id, path, i32::from(job.state.exit), &error).await
}
