//! Before a wanted reboot: it is no failed boot.
//!
//! Runs while the system goes down: everything it needs is read from files, no other program is started, nothing is waited for.

use crate::boot_state;
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::Result;
use crate::slot::Roots;
use crate::state::phase::{Phase, observe};

/// Sets the boot count to 0 where the next boot is, or goes on with, the trial of an update. Anywhere else it stays: in
/// [`Phase::Altboot`] a count of 0 would send the device back into the system that
/// does not boot.
///
/// # Errors
/// `BootStateInvalid`, `BootStateUnwritable`, `BootMountFailed` where the boot partition is gone already; `SlotUnknown`, `SlotSame`,
/// `Io`, `StateInvalid`.
pub fn run(paths: &Paths) -> Result<()> {
    let backend = boot_state::detect(paths)?;
    let state = backend.read()?;
    // Neither of the two phases, or nothing to do: this is almost every reboot there is.
    if !state.upgrade_available || state.bootcount == 0 {
        return Ok(());
    }
    let roots = Roots::of(&Facts::gather(paths)?)?;
    let phase = observe(paths, &roots)?.phase;
    if !matches!(phase, Phase::Pending | Phase::Trial) {
        tracing::info!("the boot count stays {}: the phase is {phase}", state.bootcount);
        return Ok(());
    }
    backend.clear_bootcount()?;
    tracing::info!("the boot count was {}, and is 0 now: this reboot is wanted", state.bootcount);
    Ok(())
}
