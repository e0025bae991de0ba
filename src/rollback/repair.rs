//! A file that the bootloader cannot read, or reads in part: selects what the phase and the records say, never what was found in that file.

use super::warn;
use crate::config::paths::Paths;
use crate::error::Result;
use crate::slot::Roots;
use crate::state::files::{BootfilesRecord, new_transaction};
use crate::state::phase::{Observation, Phase};

/// The caller holds the lock of updates.
pub(super) fn repair(roots: &Roots, observed: &Observation) -> Result<()> {
    let running = &roots.active;
    if !observed.state.needs_repair(running) {
        return Ok(());
    }
    let (root, on_trial) = match observed.phase {
        Phase::Trial => (running, true),
        Phase::Pending => (roots.inactive()?, true),
        Phase::Healthy | Phase::Installing | Phase::Cleanup | Phase::Finishing => (running, false),
        Phase::RolledBack => {
            let target = observed.marker.as_ref().and_then(|marker| roots.in_slot(marker.target));
            (target.unwrap_or(running), false)
        }
        // Another root is selected, and the bootloader reads that; what completes these phases selects a root.
        Phase::RollingBack | Phase::Interrupted | Phase::Altboot => return Ok(()),
    };
    observed.backend.set(root, on_trial)?;
    tracing::warn!(
        "{} was damaged: slot {} is selected {} again",
        observed.backend.file().display(),
        root.slot,
        if on_trial { "on trial" } else { "for good" }
    );
    Ok(())
}

/// Removes a count that is over the limit while no system is on trial: after the next reboot the bootloader would start the other root, where nothing
/// expects it. The counts of a trial and of a fallback stay: without them the bootloader would start the system again that does not boot. The caller holds the lock
/// of updates.
pub(super) fn clear_stale_count(roots: &Roots, observed: &Observation) -> Result<()> {
    let (state, backend) = (&observed.state, &observed.backend);
    let running = &roots.active;
    let starts_again = !state.needs_repair(running) && state.root.means(running);
    let is_at_rest = observed.phase == Phase::Healthy && !state.upgrade_available && starts_again;
    if !is_at_rest || !backend.is_exceeded(state.bootcount) {
        return Ok(());
    }
    backend.clear_bootcount()?;
    tracing::warn!(
        "{}: removed a boot count of {}, which is over the limit though no system is on trial",
        backend.file().display(),
        state.bootcount
    );
    Ok(())
}

/// As [`repair`], at boot: the bootloader may have started this system by itself, with the boot files of the other one.
pub(super) fn repair_at_boot(paths: &Paths, roots: &Roots, observed: &Observation) -> Result<()> {
    if observed.phase == Phase::Healthy
        && observed.state.needs_repair(&roots.active)
        && BootfilesRecord::read(paths).is_ok_and(|record| record.is_none())
    {
        let owner = roots.inactive_slot();
        let record = new_transaction().map(|transaction| BootfilesRecord { transaction, owner });
        // The selection does not wait for it.
        warn(record.and_then(|record| record.write(paths)));
    }
    repair(roots, observed)
}
