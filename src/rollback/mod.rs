//! The verdict on an update: the trial of the new system, and the way back to the old one.
//!
//! [`boot_check`] makes the state agree with the phase at every boot; [`health`] tries the new system and commits it or goes back;
//! [`altboot`] follows a bootloader that has gone back by itself. Each derives the phase anew before it acts, does it under
//! the lock of updates, and can be cut off at any moment: what it had begun is found in the state, and taken up again.

pub mod altboot;
pub mod boot_check;
pub mod check_version;
pub mod checks;
pub mod chroot;
pub mod clear_bootcount;
mod commit;
pub mod commit_hooks;
mod finish;
pub mod health;
mod history_record;
pub mod kernel_override;
pub mod manual;
#[cfg(test)]
mod model;
pub mod parse_bootloader;
mod platform;
mod roll_back;
pub mod state_probe;
pub mod stop;
mod trial;

pub use crate::rollback::platform::Platform;

use std::io;
use std::time::Duration;

use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::slot::{Root, Roots, Slot};
use crate::state::files::{self, RollbackKind, RollbackRecord, Trial};
use crate::state::phase::{self, Observation, Phase};
use crate::sys::file::{Folder, Steps as _};
use crate::sys::signal::SignalGuard;
use crate::sys::systemd::{self, Inhibitor};
use crate::update::lock::{Lock, Work};

/// Between two attempts to take the lock of updates.
const BUSY_PAUSE: Duration = Duration::from_secs(5);

/// The device, as far as a verdict needs it.
pub struct Context<'a> {
    /// Where everything is.
    pub paths: &'a Paths,
    /// The root partitions.
    pub roots: Roots,
    /// What is beyond the device's own files.
    pub platform: &'a Platform<'a>,
}

impl<'a> Context<'a> {
    /// Tells the roots apart.
    ///
    /// # Errors
    /// `SlotUnknown`, `SlotSame`, `Io`.
    pub fn look(paths: &'a Paths, platform: &'a Platform<'a>) -> Result<Context<'a>> {
        Ok(Context { paths, roots: mounted(paths)?, platform })
    }

    /// The other root. Where it was not mounted at the beginning, which for the verdict on a trial is long ago, it is looked for once
    /// more.
    ///
    /// # Errors
    /// `SlotUnknown` when it is not mounted; others when nobody can tell.
    fn other(&self) -> Result<Root> {
        match self.roots.other() {
            Ok(other) => Ok(other.clone()),
            Err(_) => mounted(self.paths)?.other().cloned(),
        }
    }

    /// Where the device stands now.
    ///
    /// # Errors
    /// Those of reading boot state and records.
    pub fn observe(&self) -> Result<Observation> {
        phase::observe(self.paths, &self.roots)
    }

    fn running(&self) -> &Root {
        &self.roots.active
    }

    /// The update that the running system belongs to, or is the way back from; a new number where nobody has left one.
    fn transaction(&self) -> Result<String> {
        match Trial::read(self.paths) {
            Ok(Some(trial)) => Ok(trial.transaction),
            Ok(None) => files::new_transaction(),
            Err(e) => {
                tracing::warn!("{e}; the update gets another number");
                files::new_transaction()
            }
        }
    }

    /// A rollback that is worked on in this boot.
    fn rollback_record(&self, target: Slot, kind: RollbackKind) -> Result<RollbackRecord> {
        let boot_id = files::boot_id(self.paths).unwrap_or_default();
        Ok(RollbackRecord { target, kind, transaction: self.transaction()?, boot_id })
    }

    /// Everything on the state partition, also what others have written there without waiting for it.
    fn flush_state(&self) {
        let flushed = Folder::open(&self.paths.state()).and_then(|folder| {
            folder.sync_folder()?;
            folder.flush()
        });
        warn_io("flush the state partition", flushed);
    }

    /// Reboots. A return is a failure: the device goes on until somebody restarts it.
    fn reboot(&self) -> Error {
        (self.platform.reboot)()
    }
}

/// The roots by what is mounted.
fn mounted(paths: &Paths) -> Result<Roots> {
    // Looked into, an automount mounts what it stands for; this returns when that is done, or has failed, and a device that is late
    // is waited for. Where nothing is to be mounted, that is told when it is needed.
    drop(std::fs::read_dir(paths.inactive().join(".")));
    Roots::of(&Facts::gather(paths)?)
}

/// A verdict, while nobody updates, and nothing ends the program half-way. Ends with one of [`release`](Self::release) and
/// [`release_to_reboot`](Self::release_to_reboot), before anything that may reboot.
struct BootStateGuard {
    lock: Option<Lock>,
    inhibitor: Option<Inhibitor>,
    signal_guard: Option<SignalGuard>,
}

impl BootStateGuard {
    /// Takes the lock of updates. Signals are put off.
    fn take(context: &Context<'_>, program: &str) -> Result<BootStateGuard> {
        let lock = Lock::take(context.paths, program, Work::BootState)?;
        let signal_guard = match context.platform.hold_signals.then(SignalGuard::begin) {
            Some(Err(e)) => return Err(Error::new(Code::Io, "cannot put off signals").because(e)),
            Some(Ok(signal_guard)) => Some(signal_guard),
            None => None,
        };
        Ok(BootStateGuard { lock: Some(lock), inhibitor: None, signal_guard })
    }

    /// Takes it once whoever has it lets it go: somebody who was refused an update, and had it for a moment, must not cost a
    /// verdict.
    fn wait_for(context: &Context<'_>, program: &str) -> Result<BootStateGuard> {
        let mut told = false;
        loop {
            match BootStateGuard::take(context, program) {
                Err(e) if e.code() == Code::Busy => {
                    if !told {
                        tracing::warn!("{}; waiting for its end", e.message());
                        told = true;
                    }
                    (context.platform.wait)(BUSY_PAUSE);
                }
                guard => return guard,
            }
        }
    }

    /// Asks logind not to shut down meanwhile. Not at boot, when it is not there yet, and asking for it would wait.
    fn hold_shutdown(&mut self, context: &Context<'_>, program: &str) {
        self.inhibitor = systemd::is_running(context.paths.root())
            .then(|| systemd::inhibit_shutdown(program, "the boot state is being changed"))
            .flatten();
    }

    /// Lets the system shut down: what follows may reboot.
    fn allow_shutdown(&mut self) {
        if let Some(inhibitor) = self.inhibitor.take() {
            inhibitor.release();
        }
    }

    /// Whoever has wanted to end the program meanwhile gets his way here.
    fn release(self) {
        drop(self);
    }

    /// Nothing but the reboot is left, and nobody may get in between.
    fn release_to_reboot(mut self) {
        // They stay put off.
        self.signal_guard.take();
    }
}

impl Drop for BootStateGuard {
    fn drop(&mut self) {
        self.allow_shutdown();
        if let Some(lock) = self.lock.take() {
            lock.release();
        }
        if let Some(signal_guard) = self.signal_guard.take() {
            signal_guard.release();
        }
    }
}

/// The refusal of what only fits another phase.
fn refused(what: &str, phase: Phase) -> Error {
    Error::new(Code::RollbackRefused, format!("cannot {what}: {}", phase.meaning())).object(phase.as_str())
}

/// Goes on without something.
fn warn(result: Result<()>) {
    if let Err(e) = result {
        tracing::warn!("{}", e.message());
    }
}

fn warn_io(what: &str, result: io::Result<()>) {
    if let Err(e) = result {
        tracing::warn!("cannot {what}: {e}");
    }
}
