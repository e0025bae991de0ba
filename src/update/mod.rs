//! `hostapp-update`: installs a release into the inactive slot, and selects it.
//!
//! The running system boots until the hooks of the new release select the new system: all earlier steps only write to the inactive slot.
//! Then the new system boots on trial.

pub mod arguments;
mod before;
mod events;
mod fetch;
mod history_record;
pub mod installer;
pub mod mounted_root;
mod new_root;
pub mod preflight;
pub mod safe_reboot;
pub(crate) mod scratch;
pub mod snapshot;
pub mod steps;
pub mod sysroot;
pub mod undo;

pub use events::summary;

use std::time::Duration;

use crate::config::paths::Paths;
use crate::engine::HOST_VARIABLE;
use crate::error::{Code, Error, Result};
use crate::hooks;
use crate::job::UpdateSpec;
use crate::job::lock::Lock;
use crate::progress::Progress;
use crate::slot::Slot;
use crate::state::files;
use crate::state::history;
use crate::sys::signal::{self, SignalGuard};
use crate::sys::systemd;
use history_record::HistoryRecord;
use installer::ByEngine;
use steps::Update;

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Installed {
    pub image: String,
    pub image_id: String,
    pub hostapp: String,
    /// `None` if an image is being built.
    pub slot: Option<Slot>,
    pub selected: bool,
    pub counter: u64,
}

/// A program that changes the boot state takes some seconds; one that waits for a stopped disk takes longer.
const BOOT_STATE_TIMEOUT: Duration = Duration::from_secs(60);

/// `program` is the name of the calling program, which other callers see while the update runs. `installed` is called while signals are still
/// deferred: no signal may end the program after the new release is selected and before the caller knows.
pub fn run(
    spec: &UpdateSpec,
    paths: &Paths,
    program: &str,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<()> {
    events::requested();
    // An update survives the connection that started it. Only a signal ends it, with a result, even while the checks wait for the engine or
    // a registry, or read the archive.
    let signal_guard = signal::ignore_hangup().and_then(|()| SignalGuard::begin());
    let signal_guard = signal_guard.map_err(|e| failed("prepare for signals").because(e))?;
    let lock = Lock::take_for_update(paths, program, BOOT_STATE_TIMEOUT);
    go_on()?;
    let lock = lock?;
    files::remove_irregular(paths)?;
    let ready = preflight::check(spec, paths);
    go_on()?;
    let ready = ready?;
    events::started(&spec.source, &ready);
    let inhibitor = systemd::is_running(paths.root())
        .then(|| systemd::inhibit_shutdown(program, "the host OS is being updated"))
        .flatten();
    let history = HistoryRecord::default();
    let update = Update {
        spec,
        paths,
        device: ready.device.as_ref(),
        installer: &ByEngine { spec, paths, ready: &ready, progress, history: &history },
        restore: &|| hooks::current::restore(paths, &[HOST_VARIABLE]),
        transaction: files::new_transaction()?,
    };
    let result = match &ready.device {
        Some(device) => {
            history::prepare(paths);
            // Before the record: it shows the same effect as the result.
            let result = update.run().map_err(Error::after_write);
            history.add_record(&spec.source, paths, device, &update.transaction, &result);
            result
        }
        None => update.run().map_err(Error::after_write),
    };
    if let Some(inhibitor) = inhibitor {
        inhibitor.release();
    }
    lock.release();
    match result {
        Ok(done) => {
            events::installed(&spec.source, &done);
            installed(&done);
            // A reboot may wait for applications for days, and can be cancelled. Without a reboot signals stay deferred: a signal would make the
            // update look failed.
            if spec.reboot {
                signal_guard.release();
            }
            Ok(())
        }
        // A deferred signal is dropped: the error has more information.
        Err(e) => Err(e),
    }
}

pub fn reboot(paths: &Paths) -> Result<()> {
    match safe_reboot::run(paths).map_err(Error::after_success)? {}
}

/// Ends the update between two steps if a signal came.
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
