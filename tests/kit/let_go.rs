//! Waiting for locks that are nobody's.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use copal::sys::file::is_temporary;

/// Waits until nobody holds the leftovers of a folder.
///
/// What a test in another thread starts has every open file, with its lock, until it runs another program: a leftover whose test
/// has just closed it is in use to copal then, and stays. This reads the kernel's list: children would inherit a lock taken here.
pub fn let_go(folder: &Path) {
    let started = Instant::now();
    for entry in
        std::fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|e| is_temporary(&e.file_name()))
    {
        let inode = format!(":{}", entry.metadata().unwrap().ino());
        let is_it =
            |line: &str| line.contains(" FLOCK ") && line.split(' ').any(|word| word.ends_with(&inode));
        while std::fs::read_to_string("/proc/locks").unwrap().lines().any(is_it) {
            assert!(started.elapsed() < Duration::from_secs(300), "{:?} stays locked", entry.path());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
