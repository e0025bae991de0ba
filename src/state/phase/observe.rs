//! Reads what the phase depends on.

use super::{Facts, Phase, Target};
use crate::boot_state::{self, Backend, BootState};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::slot::{Roots, Slot};
use crate::state::files::{self, Marker, RollbackRecord};

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
    let other = roots.inactive.as_ref().filter(|r| state.root.means(r));
    let selected = if selected_is_running { Some(running) } else { other.map(|r| r.slot) };
    let phase = super::of(Facts {
        selected_is_running,
        upgrade_available: state.upgrade_available,
        breadcrumb: files::any_breadcrumb(paths)?,
        marker: marker.as_ref().map(|m| m.kind),
        rollback: rollback.map(|r| if r.target == running { Target::Running } else { Target::Other }),
    });
    Ok(Observation { phase, state, backend, selected, marker })
}
