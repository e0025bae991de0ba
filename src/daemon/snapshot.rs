use crate::slot::Slot;
use crate::status::Status;

/// The values of the properties of manager and slots. Empty text means unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub phase: String,
    pub running: String,
    pub next: String,
    pub slots: [SlotState; 2],
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SlotState {
    pub device: String,
    pub version: String,
    pub state: String,
    pub bootable: bool,
    pub counter: u64,
}

pub(super) fn index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}

impl From<&Status> for Snapshot {
    fn from(status: &Status) -> Self {
        let letter = |slot: Option<Slot>| slot.map(Slot::letter).unwrap_or_default().to_owned();
        let mut snapshot = Snapshot {
            phase: status.phase.unwrap_or_default().to_owned(),
            running: letter(status.running),
            next: letter(status.next),
            slots: Default::default(),
        };
        for held in &status.slots {
            if let Some(slot) = snapshot.slots.get_mut(index(held.slot)) {
                *slot = SlotState {
                    device: format!("/dev/{}", held.device),
                    version: held.version.clone().unwrap_or_default(),
                    state: if held.running { "active" } else { "inactive" }.to_owned(),
                    bootable: held.hostapp.is_some(),
                    counter: held.counter.unwrap_or(0),
                };
            }
        }
        snapshot
    }
}
