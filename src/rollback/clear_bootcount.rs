//! Resets the boot count before a requested reboot, which is not a failed boot attempt. It also repairs a file that the bootloader cannot
//! read and would answer with its default root. Runs during the shutdown: reads only files, starts no program, waits for nothing.

use super::repair::{clear_stale_count, repair};
use crate::boot_state;
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::Result;
use crate::job::lock::{Lock, Work};
use crate::slot::Roots;
use crate::state::phase::{Phase, observe};

/// Only where the next boot starts or continues a trial, or where there is none and the count is over the limit. In [`Phase::Altboot`] a count of
/// 0 would send the device back into the system that does not boot.
pub fn run(paths: &Paths) -> Result<()> {
    let backend = boot_state::detect(paths)?;
    let state = backend.read()?;
    // Neither phase is possible, or nothing to do: almost every reboot.
    let sound = state.selected && state.damage.is_none();
    let is_stale = !state.upgrade_available && backend.is_exceeded(state.bootcount);
    if sound && !is_stale && (!state.upgrade_available || state.bootcount == 0) {
        return Ok(());
    }
    let roots = Roots::of(&Facts::gather(paths)?)?;
    if state.needs_repair(&roots.active) || is_stale {
        // An update that is still at work selects a root itself.
        let lock = Lock::take(paths, "clear-bootcount", Work::BootState)?;
        let done = observe(paths, &roots).and_then(|observed| {
            repair(&roots, &observed).and_then(|()| clear_stale_count(&roots, &observed))
        });
        lock.release();
        return done;
    }
    let phase = observe(paths, &roots)?.phase;
    if !matches!(phase, Phase::Pending | Phase::Trial) {
        tracing::info!("keeping the boot count {}: the phase is {phase}", state.bootcount);
        return Ok(());
    }
    backend.clear_bootcount()?;
    tracing::info!("boot count reset from {} to 0: this reboot was requested", state.bootcount);
    Ok(())
}
