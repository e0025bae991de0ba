//! Programs that are starting. From its fork until the program begins, a child has every descriptor of this process, whatever other threads do: a
//! file that is closed here is still open there.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longer than a program takes to begin, unless its medium has failed; then nothing is gained by waiting.
const LIMIT: Duration = Duration::from_secs(5);

static STARTING: Mutex<u32> = Mutex::new(0);
static FEWER: Condvar = Condvar::new();

fn starting() -> MutexGuard<'static, u32> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Until it is dropped, a program is starting.
pub(super) struct Start;

pub(super) fn begin() -> Start {
    *starting() += 1;
    Start
}

impl Drop for Start {
    fn drop(&mut self) {
        let mut starting = starting();
        *starting = starting.saturating_sub(1);
        FEWER.notify_all();
    }
}

/// Waits until no program is starting: what this process has closed before is then closed in each child, too. For five seconds at most.
pub(crate) fn wait_for_starts() {
    let waited = FEWER.wait_timeout_while(starting(), LIMIT, |starting| *starting > 0);
    if waited.is_ok_and(|(_, end)| end.timed_out()) {
        tracing::debug!("a program has been starting for {} s: not waiting for it", LIMIT.as_secs());
    }
}
