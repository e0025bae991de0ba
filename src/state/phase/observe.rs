//! Reads what the phase depends on.

use super::{Facts, Marked, Phase, Target};
use crate::boot_state::{self, Backend, BootState};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::slot::{Roots, Slot};
use crate::state::files::{self, Marker, RollbackRecord, Trial};
use crate::state::history::{self, Event};

pub struct Observation {
    pub phase: Phase,
    pub state: BootState,
    pub backend: Box<dyn Backend>,
    /// `None` where the boot state names neither slot.
    pub selected: Option<Slot>,
    pub marker: Option<Marker>,
}

pub fn observe(paths: &Paths, roots: &Roots) -> Result<Observation> {
    let backend = boot_state::detect(paths)?;
    let state = backend.read()?;
    let marker = Marker::read(paths)?;
    let rollback = RollbackRecord::read(paths)?;
    let running = roots.active.slot;
    // Where the other root is not mounted, a selection that is not the running root is taken for the other one.
    let selected_is_running = state.root.means(&roots.active);
    let other = roots.inactive().ok().filter(|r| state.root.means(r));
    let selected = if selected_is_running { Some(running) } else { other.map(|r| r.slot) };
    let choice = Choice::of(paths, roots, &state, marker.as_ref());
    let phase = super::of(Facts {
        selected_is_running: choice.is_running,
        upgrade_available: choice.on_trial,
        breadcrumb: files::any_breadcrumb(paths)?,
        marker: marker.as_ref().map(|m| m.kind),
        rollback: rollback.map(|r| if r.target == running { Target::Running } else { Target::Other }),
    });
    Ok(Observation { phase, state, backend, selected, marker })
}

/// The selection that the phase is derived from.
struct Choice {
    is_running: bool,
    on_trial: bool,
}

impl Choice {
    /// What the bootloader does not read of the selection, because its file is damaged, comes from the records: a root that it takes by
    /// itself is none that it fell back to.
    fn of(paths: &Paths, roots: &Roots, state: &BootState, marker: Option<&Marker>) -> Choice {
        let running = roots.active.slot;
        let is_running = state.root.means(&roots.active);
        if state.selected && state.damage.is_none() {
            return Choice { is_running, on_trial: state.upgrade_available };
        }
        let is_running =
            if state.selected { is_running } else { !marker.is_some_and(|m| is_installed(paths, m)) };
        let on_trial = if is_running {
            Trial::read(paths).is_ok_and(|trial| trial.is_some_and(|t| t.slot == running))
        } else {
            marker.is_some_and(|m| is_installed(paths, m))
        };
        Choice { is_running, on_trial: on_trial || (state.selected && state.upgrade_available) }
    }
}

/// The update of this boot is complete: its slot was selected.
fn is_installed(paths: &Paths, marker: &Marker) -> bool {
    marker.kind == Marked::Installing
        && history::read(paths)
            .iter()
            .any(|r| r.event == Event::Installed && r.transaction == marker.transaction)
}
