//! The lock of processes that start a job. One process holds it at a time. The file holds the last number of a job, even of a job that was
//! not started, so that no number is used twice.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

pub(super) const LOCK_FILE: &str = "job.lock";
/// The holder sends two requests to systemd, each with a limit of 10 s.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Digits of the number in the file.
const NUMBER_DIGITS: usize = 10;

/// A process that starts a job holds the lock until systemd has answered.
pub(crate) fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(LOCK_FILE))
}

/// Waits for the lock, but not forever: its holder may be stopped.
pub(super) fn take(lock: &File, limit: Duration) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if began.elapsed() < limit => thread::sleep(POLL_INTERVAL),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
}

/// Only for the process that holds the lock. `last`: the number of the job in the record.
pub(super) fn next_number(lock: &File, last: u32) -> io::Result<u32> {
    let mut text = [0; NUMBER_DIGITS];
    let length = lock.read_at(&mut text, 0)?;
    let used = text.get(..length).and_then(|t| std::str::from_utf8(t).ok()?.parse().ok()).unwrap_or(0);
    let next = last.max(used).checked_add(1).unwrap_or(1);
    // In one call and with a fixed length, so that no kill leaves a part of it.
    lock.write_all_at(format!("{next:0width$}", width = NUMBER_DIGITS).as_bytes(), 0)?;
    Ok(next)
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
        // Not by closing it: a program that another test is starting may have a copy of the file.
        first.unlock().unwrap();
        assert!(take(&second, Duration::ZERO).unwrap());
    }

    #[test]
    fn no_number_comes_twice() {
        let dir = tempfile::tempdir().unwrap();
        let lock = open(dir.path()).unwrap();
        assert_eq!(next_number(&lock, 0).unwrap(), 1);
        // The job was not started: nothing else remembers it.
        assert_eq!(next_number(&lock, 0).unwrap(), 2);
        // One of before this file had a number.
        assert_eq!(next_number(&lock, 99).unwrap(), 100);
        let lock = open(dir.path()).unwrap();
        assert_eq!(next_number(&lock, 7).unwrap(), 101);
        lock.set_len(3).unwrap();
        assert_eq!(next_number(&lock, 101).unwrap(), 102);
        assert_eq!(next_number(&lock, u32::MAX).unwrap(), 1);
    }
}
