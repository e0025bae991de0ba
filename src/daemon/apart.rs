//! Runs blocking work outside of the thread that serves the bus.

use std::io;
use std::thread;

use tokio::sync::{Semaphore, oneshot};

/// Threads at the same time: one reads the device, the others wait for systemd.
static FREE: Semaphore = Semaphore::const_new(3);

/// Runs `work` in a new thread. If the system refuses a thread, only this call fails. With tokio's threads for blocking work, a refused
/// thread would end the whole process with a panic.
pub(super) async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let place = FREE.acquire().await.map_err(io::Error::other)?;
    let (done, result) = oneshot::channel();
    thread::Builder::new().name("apart".to_owned()).spawn(move || {
        // A late result has no receiver.
        drop(done.send(work()));
        drop(place);
    })?;
    result.await.map_err(io::Error::other)
}
