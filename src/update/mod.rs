//! `hostapp-update`: installs a release into the inactive slot, and selects it.
//!
//! Until the new release's hooks select it, the running system boots, whatever happens: every earlier step writes to the inactive slot
//! only. After that the new system boots on trial.

mod before;
mod events;
mod fetch;
mod history_record;
pub mod installer;
mod legacy;
pub mod lock;
pub mod mounted_root;
mod new_root;
pub mod preflight;
pub mod safe_reboot;
pub(crate) mod scratch;
pub mod snapshot;
pub mod steps;
pub mod sysroot;
pub mod undo;

use std::path::PathBuf;

pub use events::summary;
pub use legacy::asked;

use crate::config::paths::Paths;
use crate::engine::HOST_VARIABLE;
use crate::error::{Code, Error, Result};
use crate::hooks;
use crate::progress::Progress;
use crate::slot::Slot;
use crate::state::files;
use crate::state::history;
use crate::sys::signal::{self, SignalGuard};
use crate::sys::systemd;
use history_record::HistoryRecord;
use installer::ByEngine;
use lock::{Lock, Work};
use steps::Update;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Reference(String),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Reference(name) => f.write_str(name),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Request {
    pub paths: Paths,
    /// The name that the program was called by; shown to others while the update runs.
    pub program: String,
    pub source: Source,
    /// Run the hooks of the new release, the last of which selects it. Without them it is installed and not selected.
    pub hooks: bool,
    /// After a failed hook, run the hooks of the running system, to restore its boot files.
    pub recover: bool,
    /// The caller will call [`reboot`].
    pub reboot: bool,
    /// Update also when the running system is on trial, or the bootloader has fallen back to it, or the new system would lack what the
    /// owner named.
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Installed {
    pub image: String,
    pub image_id: String,
    pub hostapp: String,
    /// `None` where an image is being built.
    pub slot: Option<Slot>,
    pub selected: bool,
    pub counter: u64,
}

/// `installed` is called while signals are still deferred: no signal may end the program after the new release is selected and before
/// the caller knows.
pub fn run(request: &Request, progress: &dyn Progress, installed: &dyn Fn(&Installed)) -> Result<()> {
    events::wanted();
    // An update outlives the connection that started it. Only a signal ends it, with a result: also while the checks wait for the engine or
    // a registry, or read the archive.
    let signal_guard = signal::ignore_hangup().and_then(|()| SignalGuard::begin());
    let signal_guard = signal_guard.map_err(|e| failed("prepare for signals").because(e))?;
    let lock = Lock::take(&request.paths, &request.program, Work::Update)?;
    files::remove_irregular(&request.paths)?;
    let ready = preflight::check(request);
    go_on()?;
    let ready = ready?;
    events::started(request, &ready);
    let inhibitor = systemd::is_running(request.paths.root())
        .then(|| systemd::inhibit_shutdown(&request.program, "the host OS is being updated"))
        .flatten();
    let history = HistoryRecord::default();
    let update = Update {
        request,
        device: ready.device.as_ref(),
        installer: &ByEngine { request, ready: &ready, progress, history: &history },
        restore: &|| hooks::current::restore(&request.paths, &[HOST_VARIABLE]),
        transaction: files::new_transaction()?,
    };
    let result = match &ready.device {
        Some(device) => {
            history::prepare(&request.paths);
            let result = update.run();
            history.add_record(request, device, &update.transaction, &result);
            result
        }
        None => update.run(),
    };
    if let Some(inhibitor) = inhibitor {
        inhibitor.release();
    }
    lock.release();
    match result {
        Ok(done) => {
            events::installed(request, &done);
            installed(&done);
            // Otherwise signals stay deferred: a signal now would make the update look failed. A reboot, though, may wait for applications
            // for days, and can be cancelled.
            if request.reboot {
                signal_guard.release();
            }
            Ok(())
        }
        // The error says more than the signal.
        Err(e) => Err(e.after_write()),
    }
}

/// Whether `request` is for the root file system of an image that is being built.
#[must_use]
pub(crate) fn is_build(request: &Request) -> bool {
    preflight::is_build(request)
}

pub fn reboot(paths: &Paths) -> Result<()> {
    match safe_reboot::run(paths).map_err(Error::after_success)? {}
}

/// Between two steps: ends the update if a signal came.
pub(crate) fn go_on() -> Result<()> {
    match signal::came() {
        None => Ok(()),
        Some(signal) => Err(Error::new(Code::Interrupted, format!("the update was ended by {signal}"))
            .with_hint("run the update again: the running system is selected as before")),
    }
}

fn failed(what: &str) -> Error {
    Error::new(Code::UpdateFailed, format!("cannot update: cannot {what}"))
}
