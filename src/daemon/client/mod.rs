//! Hands an update over to the daemon, and follows it.
//!
//! A lost connection ends the programs that were started over it, but not the daemon's job. Where there is no daemon, or it must not
//! do it, the update runs in this process.
//!
//! Once the daemon may have taken the update, it never starts here: the job is looked for until it is found, or known to be lost.

mod bus;
mod follow;
mod job;
mod order;
mod place;

use std::ffi::OsString;

use crate::error::Result;
use crate::progress::{self, Progress};
use crate::sys::signal::{SignalGuard, came, hung_up};
use crate::update::{self, Installed, Request};

use follow::{Followed, Follower};
use order::Order;

/// In the daemon if `hand_over` and it is reachable, otherwise here. `installed` is called when the new release is in place, before a
/// reboot waits for anything.
pub fn update(
    request: &Request,
    hand_over: bool,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<()> {
    if hand_over && let Some(result) = in_daemon(request, progress, installed)? {
        return result;
    }
    update::run(request, progress, installed)?;
    if request.reboot { update::reboot(&request.paths) } else { Ok(()) }
}

pub(crate) fn hostapp_update(args: &[OsString]) -> Result<()> {
    let (request, hand_over) = update::asked(args)?;
    let shown = progress::for_service();
    let result = update(&request, hand_over, &shown, &|_| shown.close());
    shown.close();
    result
}

/// `None` where the daemon has not taken it.
fn in_daemon(
    request: &Request,
    progress: &dyn Progress,
    installed: &dyn Fn(&Installed),
) -> Result<Option<Result<()>>> {
    if let Some(why) = place::stays(request) {
        tracing::debug!("the update runs in this process: {why}");
        return Ok(None);
    }
    let Some(order) = Order::of(request)? else {
        tracing::debug!("the update runs in this process: D-Bus cannot carry the name of its source");
        return Ok(None);
    };
    // The job outlives this process, but a signal to this process cancels it.
    let signal_guard = match SignalGuard::begin() {
        Ok(signal_guard) => signal_guard,
        Err(e) => {
            tracing::debug!("the update runs in this process: {e}");
            return Ok(None);
        }
    };
    let on_installed = |done: &Installed| {
        // The daemon's log has it as an event.
        tracing::info!("{}", update::summary(request, done));
        installed(done);
    };
    match Follower::new(&request.paths, &order, progress, &on_installed).follow() {
        // Not released: a signal was meant for the job, and the result shows its effect.
        Followed::Ended(result) => Ok(Some(result)),
        Followed::NotTaken(why) => {
            // A deferred signal ends the program here.
            signal_guard.release();
            tracing::info!("the update runs in this process: {why}");
            Ok(None)
        }
    }
}

/// Whether a signal asks to end the update. A lost terminal, and what comes with that, does not.
fn is_unwanted() -> bool {
    use nix::sys::signal::Signal::{SIGINT, SIGQUIT, SIGTERM};
    !hung_up() && matches!(came(), Some(SIGINT | SIGQUIT | SIGTERM))
}
