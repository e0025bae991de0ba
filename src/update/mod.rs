//! `hostapp-update`: installs a release into the slot that is not running, and selects it.
//!
//! Until the new release's hooks select it, the running system is the one that boots, whatever happens: every step before that
//! writes to the other slot, which is not selected. After it, the new system boots on trial.

mod before;
mod events;
mod fetch;
mod history_record;
pub(crate) mod installer;
mod legacy;
pub mod lock;
pub mod mounted_root;
mod new_root;
pub mod preflight;
pub mod safe_reboot;
pub(crate) mod scratch;
pub mod snapshot;
pub(crate) mod steps;
pub mod sysroot;
pub mod undo;

use std::path::PathBuf;

pub use events::told;
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

/// Where the release comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An image archive.
    File(PathBuf),
    /// An image in a registry.
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

/// An update that somebody wants.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where everything is.
    pub paths: Paths,
    /// The name it was asked by, for whoever comes second.
    pub program: String,
    /// What to install.
    pub source: Source,
    /// Run the hooks of the new release, the last of which selects it. Otherwise it is installed and not selected.
    pub hooks: bool,
    /// When a hook fails, run those of the running system, so that its boot files are in place again.
    pub recover: bool,
    /// Somebody is going to call [`reboot`] afterwards.
    pub reboot: bool,
    /// Update although the running system is on trial, or is the one that the bootloader went back to.
    pub force: bool,
}

/// An update that is installed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Installed {
    /// The image, as it was named.
    pub image: String,
    /// Its identifier.
    pub image_id: String,
    /// The container that is the host app.
    pub hostapp: String,
    /// The slot it is in; `None` where an image is being built.
    pub slot: Option<Slot>,
    /// Whether that slot boots next.
    pub selected: bool,
    /// The slot's counter.
    pub counter: u64,
}

/// Updates. `installed` is told of the new release while signals to end are still put off: nobody may be killed between the moment in which it
/// boots next and that in which somebody knows.
///
/// # Errors
/// Refusals, with nothing changed. From the first change on the error says what boots next: the running system, unless it says
/// otherwise in plain words.
pub fn run(request: &Request, progress: &dyn Progress, installed: &dyn Fn(&Installed)) -> Result<()> {
    events::wanted();
    let lock = Lock::take(&request.paths, &request.program, Work::Update)?;
    let ready = preflight::check(request)?;
    events::started(request, &ready);
    // An update outlives the connection that it was started by; whoever wants it to end says so.
    let signal_guard = signal::ignore_hangup().and_then(|()| SignalGuard::begin());
    let signal_guard = signal_guard.map_err(|e| failed("prepare for signals").because(e))?;
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
            history.tell(request, device, &update.transaction, &result);
            result
        }
        // An image that is being built has no history.
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
            // Otherwise signals stay put off: ended by one now, the update would be taken for failed. A reboot may wait for
            // applications for days, though, and can be called off.
            if request.reboot {
                signal_guard.release();
            }
            Ok(())
        }
        // The error says more than the signal would.
        Err(e) => Err(e.after_write()),
    }
}

/// Whether `request` is for the root file system of an image that is being made, and not for a device.
#[must_use]
pub fn is_build(request: &Request) -> bool {
    preflight::is_build(request)
}

/// Reboots when applications allow it.
///
/// # Errors
/// The update is installed all the same.
pub fn reboot(paths: &Paths) -> Result<()> {
    match safe_reboot::run(paths).map_err(Error::after_success)? {}
}

/// Between two steps: whether somebody wants the update to end.
fn go_on() -> Result<()> {
    match signal::came() {
        None => Ok(()),
        Some(signal) => Err(Error::new(Code::Interrupted, format!("the update was ended by {signal}"))
            .with_hint("run the update again: the running system is selected as before")),
    }
}

fn failed(what: &str) -> Error {
    Error::new(Code::UpdateFailed, format!("cannot update: cannot {what}"))
}
