//! The verdict on an update: the trial of the new system, commit, and rollback.
//!
//! [`boot_check`] repairs the state at every boot; [`health`] tests the new system, and commits it or rolls back; [`altboot`] follows a
//! bootloader that has fallen back. Each derives the phase again before it acts, holds the lock of updates, and can be interrupted at
//! any moment: the state shows what was begun, and the next run completes it.

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
mod health_results;
mod history_record;
pub mod kernel_override;
pub mod manual;
pub mod parse_bootloader;
mod platform;
mod repair;
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
use crate::job::lock::{Lock, Work};
use crate::slot::{Root, Roots, Slot};
use crate::state::files::{self, RollbackKind, RollbackRecord, Trial};
use crate::state::phase::{self, Observation, Phase};
use crate::sys::file::Folder;
use crate::sys::signal::SignalGuard;
use crate::sys::systemd::{self, Inhibitor};

const BUSY_PAUSE: Duration = Duration::from_secs(5);

pub struct Context<'a> {
    pub paths: &'a Paths,
    pub roots: Roots,
    pub platform: &'a Platform<'a>,
}

impl<'a> Context<'a> {
    pub fn look(paths: &'a Paths, platform: &'a Platform<'a>) -> Result<Context<'a>> {
        Ok(Context { paths, roots: mounted(paths)?, platform })
    }

    /// Looks again if it was not mounted at the beginning, which for a verdict is minutes ago.
    fn inactive(&self) -> Result<Root> {
        match self.roots.inactive() {
            Ok(inactive) => Ok(inactive.clone()),
            Err(_) => mounted(self.paths)?.inactive().cloned(),
        }
    }

    pub fn observe(&self) -> Result<Observation> {
        phase::observe(self.paths, &self.roots)
    }

    fn running(&self) -> &Root {
        &self.roots.active
    }

    /// The update that brought the running system, or is being rolled back; a new one where no record has it.
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

    /// Marks this boot as the boot that performs the rollback.
    fn rollback_record(&self, target: Slot, kind: RollbackKind) -> Result<RollbackRecord> {
        let boot_id = files::boot_id(self.paths).unwrap_or_default();
        Ok(RollbackRecord { target, kind, transaction: self.transaction()?, boot_id })
    }

    /// Includes files that other programs have not flushed.
    fn flush_state(&self) {
        let flushed = Folder::open(&self.paths.state()).and_then(|folder| {
            folder.sync_folder()?;
            folder.flush()
        });
        warn_io("flush the state partition", flushed);
    }

    /// Returns only on failure: the device runs on until an operator restarts it.
    fn reboot(&self) -> Error {
        (self.platform.reboot)()
    }
}

fn mounted(paths: &Paths) -> Result<Roots> {
    // Reading the folder triggers an automount, and returns when it has succeeded or failed, also on a slow device. Code that needs a
    // root that is not mounted reports it.
    drop(std::fs::read_dir(paths.inactive().join(".")));
    Roots::of(&Facts::gather(paths)?)
}

/// Held during a verdict: no update runs, and no signal ends the program. Ends with [`release`](Self::release) or
/// [`release_to_reboot`](Self::release_to_reboot), before anything that may reboot.
struct BootStateGuard {
    lock: Option<Lock>,
    inhibitor: Option<Inhibitor>,
    signal_guard: Option<SignalGuard>,
}

impl BootStateGuard {
    fn take(context: &Context<'_>, program: &str) -> Result<BootStateGuard> {
        let lock = Lock::take(context.paths, program, Work::BootState)?;
        let signal_guard = match context.platform.hold_signals.then(SignalGuard::begin) {
            Some(Err(e)) => return Err(Error::new(Code::Io, "cannot defer signals").because(e)),
            Some(Ok(signal_guard)) => Some(signal_guard),
            None => None,
        };
        Ok(BootStateGuard { lock: Some(lock), inhibitor: None, signal_guard })
    }

    /// Waits for the lock: a refused update, which holds it for a moment, must not cost a verdict.
    fn wait_for(context: &Context<'_>, program: &str) -> Result<BootStateGuard> {
        let mut reported = false;
        loop {
            match BootStateGuard::take(context, program) {
                Err(e) if e.code() == Code::Busy => {
                    if !reported {
                        tracing::warn!("{}; waiting for its end", e.message());
                        reported = true;
                    }
                    (context.platform.wait)(BUSY_PAUSE);
                }
                guard => return guard,
            }
        }
    }

    /// Inhibits a shutdown by logind. Not at boot: logind does not run yet, and the call would wait for it.
    fn hold_shutdown(&mut self, context: &Context<'_>, program: &str) {
        self.inhibitor = systemd::is_running(context.paths.root())
            .then(|| systemd::inhibit_shutdown(program, "the boot state is being changed"))
            .flatten();
    }

    fn allow_shutdown(&mut self) {
        if let Some(inhibitor) = self.inhibitor.take() {
            inhibitor.release();
        }
    }

    /// A deferred signal ends the program here.
    fn release(self) {
        drop(self);
    }

    /// Only the reboot follows, and nothing may interrupt it.
    fn release_to_reboot(mut self) {
        // Signals stay deferred.
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

fn refused(what: &str, phase: Phase) -> Error {
    Error::new(Code::RollbackRefused, format!("cannot {what}: {}", phase.meaning())).object(phase.as_str())
}

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
