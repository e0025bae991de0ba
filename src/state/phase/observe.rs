//! What the phase depends on, read from a device.

use super::{Facts, Phase, Target};
use crate::boot_state::{self, Backend, BootState};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::slot::{Roots, Slot};
use crate::state::files::{self, Marker, RollbackRecord};

/// What was found, and the phase that follows from it.
pub struct Observation {
    /// The phase.
    pub phase: Phase,
    /// What the bootloader goes by.
    pub state: BootState,
    /// How it is told.
    pub backend: Box<dyn Backend>,
    /// The slot that is selected; `None` where the entry names neither root.
    pub selected: Option<Slot>,
    /// The marker of this boot.
    pub marker: Option<Marker>,
}

/// Looks at boot state, breadcrumbs, marker and records.
///
/// # Errors
/// One of them cannot be read: then nobody may guess.
pub fn observe(paths: &Paths, roots: &Roots) -> Result<Observation> {
    let backend = boot_state::detect(paths)?;
    let state = backend.read()?;
    let marker = Marker::read(paths)?;
    let rollback = RollbackRecord::read(paths)?;
    let running = roots.active.slot;
    // Without the other root mounted, an entry that does not mean the running one is taken to mean the other.
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
