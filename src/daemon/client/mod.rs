//! Hands an update to the daemon, and follows it.
//!
//! A lost connection ends whoever was started over it. The daemon's job it does not end: that goes on, and the next one who
//! asks is told. Where there is no daemon, or it must not be asked, the update runs in this process.
//!
//! From the moment in which the daemon may have taken it, an update is never begun here: the job is looked for until it is
//! found, or known to be lost.

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

/// Updates, and reboots where that was asked for: in the daemon if `hand_over` and it can be reached, otherwise here. `installed` is told of
/// the new release when it is in place, before a reboot waits for anything.
///
/// # Errors
/// Those of [`update::run`] and [`update::reboot`], wherever it runs; `DaemonLost` when the daemon has taken the update, and what became of it
/// cannot be learned.
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

/// `hostapp-update`.
///
/// # Errors
/// `Usage` for wrong arguments, then those of [`update`].
pub fn hostapp_update(args: &[OsString]) -> Result<()> {
    let (request, hand_over) = update::asked(args)?;
    let shown = progress::for_service();
    let result = update(&request, hand_over, &shown, &|_| shown.close());
    shown.close();
    result
}

/// The job's result; `None` where nobody has taken it.
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
        tracing::debug!("the update runs in this process: its source cannot be said on the bus");
        return Ok(None);
    };
    // The job outlives us; but whoever wants it to end says so to us.
    let signal_guard = match SignalGuard::begin() {
        Ok(signal_guard) => signal_guard,
        Err(e) => {
            tracing::debug!("the update runs in this process: {e}");
            return Ok(None);
        }
    };
    let told = |done: &Installed| {
        // The daemon's log has it as an event.
        tracing::info!("{}", update::told(request, done));
        installed(done);
    };
    match Follower::new(&request.paths, &order, progress, &told).follow() {
        // Not released: a signal that has come was meant for the job, and the result says what it came to.
        Followed::Ended(result) => Ok(Some(result)),
        Followed::NotTaken(why) => {
            // A signal that has come ends the program here.
            signal_guard.release();
            tracing::info!("the update runs in this process: {why}");
            Ok(None)
        }
    }
}

/// Whether somebody wants the update to end. A terminal that was lost, and whatever comes with that, does not.
fn is_unwanted() -> bool {
    use nix::sys::signal::Signal::{SIGINT, SIGQUIT, SIGTERM};
    !hung_up() && matches!(came(), Some(SIGINT | SIGQUIT | SIGTERM))
}
