//! `rollback-altboot`: the bootloader has gone back to the running system by itself. The selection follows it, and the boot files.

use super::finish::finish;
use super::{Ground, Outside, Turn, story, warn};
use crate::config::paths::Paths;
use crate::config::rollback_conf::RollbackConf;
use crate::error::{Error, Result};
use crate::state::files::{self, Marker, RollbackKind};
use crate::state::history::{Event, announce};
use crate::state::phase::{Marked, Observation, Phase};

/// Does it, in the phase that it is for, and reboots; otherwise nothing.
///
/// # Errors
/// `Busy`; `SlotUnknown` and the like; the running system could not be selected; the device does not reboot.
pub fn run(paths: &Paths, conf: &RollbackConf) -> Result<()> {
    let outside = Outside::of(paths, conf);
    run_with(&Ground::look(paths, &outside)?)
}

/// [`run`], wherever the ground is.
///
/// # Errors
/// As for [`run`].
pub fn run_with(ground: &Ground<'_>) -> Result<()> {
    let turn = Turn::wait_for(ground, "rollback-altboot")?;
    let seen = ground.observe()?;
    if seen.phase == Phase::Altboot {
        return Err(act(ground, &seen, turn));
    }
    tracing::info!("nothing to do for rollback-altboot: {}", seen.phase.meaning());
    turn.release();
    Ok(())
}

/// Back to the running system, and a reboot: the boot files that the kernel was started with are still the new ones. A return is
/// a failure.
pub(super) fn act(ground: &Ground<'_>, seen: &Observation, turn: Turn) -> Error {
    match follow(ground, seen) {
        Ok(()) => {
            turn.release_to_reboot();
            ground.reboot()
        }
        Err(e) => e,
    }
}

fn follow(ground: &Ground<'_>, seen: &Observation) -> Result<()> {
    let paths = ground.paths;
    let slot = ground.running().slot;
    let record = ground.rollback_record(slot, RollbackKind::Altboot)?;
    let why =
        format!("the bootloader gave up on slot {} at a count of {}", slot.other(), seen.state.bootcount);
    let mut told = ground.record(Event::Altboot, &record.transaction, slot.other(), slot);
    story::seen(&mut told, seen);
    // Without it a cut from here on leads to a system that is selected, but whose boot files nobody looks after: still better than to
    // stay with a dead one selected.
    warn(record.write(paths));
    let telling = ground.tell(told, false);
    finish(ground, &record)?;
    announce::rolled_back(slot, &why);
    let marker = Marker {
        kind: Marked::RolledBack,
        boot_id: files::boot_id(paths).unwrap_or_default(),
        target: slot,
        transaction: record.transaction,
    };
    warn(marker.set(paths));
    ground.flush_state();
    telling.finish();
    Ok(())
}
