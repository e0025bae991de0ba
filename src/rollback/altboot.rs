//! `rollback-altboot`: the bootloader has fallen back to the running system. Selects it, and restores its boot files.

use super::finish::finish;
use super::{BootStateGuard, Context, Platform, history_record, warn};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::{Error, Result};
use crate::state::files::{self, Marker, RollbackKind};
use crate::state::history::{Event, announce};
use crate::state::phase::{Marked, Observation, Phase};

/// Reboots after it. Does nothing in other phases.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let platform = Platform::of(paths, conf);
    run_with(&Context::look(paths, &platform)?)
}

pub fn run_with(context: &Context<'_>) -> Result<()> {
    let guard = BootStateGuard::wait_for(context, "rollback-altboot")?;
    let observed = context.observe()?;
    if observed.phase == Phase::Altboot {
        return Err(act(context, &observed, guard));
    }
    tracing::info!("nothing to do for rollback-altboot: {}", observed.phase.meaning());
    guard.release();
    Ok(())
}

/// Rolls back to the running system and reboots, since the kernel was started with the new boot files. Returns only on failure.
pub(super) fn act(context: &Context<'_>, observed: &Observation, guard: BootStateGuard) -> Error {
    match follow(context, observed) {
        Ok(()) => {
            guard.release_to_reboot();
            context.reboot()
        }
        Err(e) => e,
    }
}

fn follow(context: &Context<'_>, observed: &Observation) -> Result<()> {
    let paths = context.paths;
    let running = context.running().slot;
    let failed = context.roots.inactive_slot();
    let record = context.rollback_record(running, RollbackKind::Altboot)?;
    let why =
        format!("the bootloader fell back from slot {failed} at a count of {}", observed.state.bootcount);
    let mut record_of_it = context.record(Event::Altboot, &record.transaction, failed, running);
    history_record::observed(&mut record_of_it, observed);
    // Without the record, a power cut from here on leads to a system that is selected, but whose boot files nothing restores: still better
    // than to keep a dead one selected.
    warn(record.write(paths));
    let pending = context.add_record(record_of_it, false);
    finish(context, &record)?;
    announce::rolled_back(running, &why);
    let marker = Marker {
        kind: Marked::RolledBack,
        boot_id: files::boot_id(paths).unwrap_or_default(),
        target: running,
        transaction: record.transaction,
    };
    warn(marker.set(paths));
    context.flush_state();
    pending.finish();
    Ok(())
}
