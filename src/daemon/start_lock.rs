//! The lock of processes that start a job: one at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

pub(super) const LOCK: &str = "job.lock";
/// The process that holds it asks systemd twice, 10 s each time at most.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Held by the process that starts a job, until systemd has answered.
pub(super) fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(folder.join(LOCK))
}

/// Waits for the lock, but not for a process that was stopped while it held it.
pub(super) fn take(lock: &File, limit: Duration) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if began.elapsed() < limit => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_keeps_the_lock_is_not_waited_for_forever() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (open(dir.path()).unwrap(), open(dir.path()).unwrap());
        assert!(take(&first, Duration::ZERO).unwrap());
        let began = Instant::now();
        assert!(!take(&second, Duration::from_millis(100)).unwrap());
        assert!(began.elapsed() >= Duration::from_millis(100));
        drop(first);
        assert!(take(&second, Duration::ZERO).unwrap());
    }
}
