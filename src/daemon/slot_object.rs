//! A slot on the bus.

use std::collections::HashMap;
use std::sync::Arc;

use zbus::{Variant, interface};

use super::OBJECT_PATH;
use super::core::Core;
use super::snapshot::{SlotState, index};
use crate::slot::Slot;

pub(super) struct SlotObject {
    core: Arc<Core>,
    slot: Slot,
}

pub(super) fn path(slot: Slot) -> String {
    format!("{OBJECT_PATH}/slot/{}", slot.letter())
}

impl SlotObject {
    pub(super) fn new(core: Arc<Core>, slot: Slot) -> SlotObject {
        SlotObject { core, slot }
    }

    async fn content(&self) -> SlotState {
        self.core.look().await.slots.get(index(self.slot)).cloned().unwrap_or_default()
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
impl SlotObject {
    #[zbus(property(emits_changed_signal = "const"))]
    fn name(&self) -> String {
        self.slot.letter().to_owned()
    }

    #[zbus(property)]
    async fn device(&self) -> String {
        self.content().await.device
    }

    #[zbus(property)]
    async fn version(&self) -> String {
        self.content().await.version
    }

    #[zbus(property)]
    async fn state(&self) -> String {
        self.content().await.state
    }

    #[zbus(property)]
    async fn bootable(&self) -> bool {
        self.content().await.bootable
    }

    #[zbus(property)]
    async fn counter(&self) -> u64 {
        self.content().await.counter
    }
}
