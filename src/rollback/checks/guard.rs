//! A limit for copal's own work: a file system or a bus may hang.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tracing::dispatcher;

/// The result of `work` within `limit`. Work that hangs in the kernel cannot be ended: its thread is left alone.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let log = dispatcher::get_default(Clone::clone);
    // The receiver is gone if the work is too late.
    let run = move || drop(sender.send(dispatcher::with_default(&log, work)));
    let thread = thread::Builder::new().name("health check".to_owned()).spawn(run);
    thread.map_err(|e| format!("it cannot be started: {e}"))?;
    receiver.recv_timeout(limit).map_err(|e| match e {
        RecvTimeoutError::Timeout => format!("no result after {} s", limit.as_secs_f64()),
        RecvTimeoutError::Disconnected => "it ended without a result".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_or_ends_early_is_not_waited_for() {
        let limit = Duration::from_millis(50);
        assert_eq!(within(Duration::from_secs(10), || 7), Ok(7));
        let (keep, hang) = mpsc::channel::<()>();
        let late: String = within(limit, move || hang.recv()).unwrap_err();
        assert_eq!(late, "no result after 0.05 s");
        drop(keep);
        let gone = within(Duration::from_secs(10), || std::panic::resume_unwind(Box::new(()))).map(|()| 0);
        assert_eq!(gone.unwrap_err(), "it ended without a result");
    }
}
