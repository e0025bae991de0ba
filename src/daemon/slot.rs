use std::collections::HashMap;
use std::sync::Arc;

use zbus::{Variant, interface};

use super::MANAGER;
use super::core::Core;
use super::snapshot::{SlotState, index};
use crate::slot::Slot as Which;

pub(super) struct Slot {
    core: Arc<Core>,
    which: Which,
}

pub(super) fn path(which: Which) -> String {
    format!("{MANAGER}/slot/{}", which.letter())
}

impl Slot {
    pub(super) fn new(core: Arc<Core>, which: Which) -> Slot {
        Slot { core, which }
    }

    async fn held(&self) -> SlotState {
        self.core.look().await.slots.get(index(self.which)).cloned().unwrap_or_default()
    }
}

pub(super) fn changes(before: &SlotState, now: &SlotState) -> HashMap<&'static str, Variant<'static>> {
    let mut changed = HashMap::new();
    let mut put = |name, differs: bool, value: Variant<'static>| {
        if differs {
            changed.insert(name, value);
        }
    };
    put("Device", before.device != now.device, now.device.clone().into());
    put("Version", before.version != now.version, now.version.clone().into());
    put("State", before.state != now.state, now.state.clone().into());
    put("Bootable", before.bootable != now.bootable, now.bootable.into());
    put("Counter", before.counter != now.counter, now.counter.into());
    changed
}

#[interface(name = "io.balena.Copal1.Slot", introspection_docs = false)]
impl Slot {
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> String {
        self.which.letter().to_owned()
    }

    #[zbus(property)]
    async fn device(&self) -> String {
        self.held().await.device
    }

    #[zbus(property)]
    async fn version(&self) -> String {
        self.held().await.version
    }

    #[zbus(property)]
    async fn state(&self) -> String {
        self.held().await.state
    }

    #[zbus(property)]
    async fn bootable(&self) -> bool {
        self.held().await.bootable
    }

    #[zbus(property)]
    async fn counter(&self) -> u64 {
        self.held().await.counter
    }
}
