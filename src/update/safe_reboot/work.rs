//! Work that a reboot by force would cut off: an update, its undo, or a verdict. Its process holds the update lock.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::config::paths::Paths;
use crate::job::lock::Holder;
use crate::sys::command;
use crate::sys::file::read_record;

/// Names the holder whose hook has asked for the reboot: it waits for that hook, which does not return.
fn asker(paths: &Paths) -> PathBuf {
    paths.run_files().join("reboot-asker")
}

/// Records whether the holder of the lock waits for this process, for whichever process reboots: that must not wait for the holder.
pub(super) fn note_asker(paths: &Paths) {
    let holder = Holder::of(paths).ok().flatten();
    let own = holder.filter(|holder| command::is_self_or_ancestor(holder.pid));
    let noted = match own {
        Some(holder) => fs::write(asker(paths), holder.pid.to_string()),
        None => fs::remove_file(asker(paths)),
    };
    match noted {
        Err(e) if e.kind() != io::ErrorKind::NotFound => tracing::debug!("{}: {e}", asker(paths).display()),
        _ => {}
    }
}

/// Whether a process works that a reboot by force must let end. Logged once.
pub(super) fn is_under_way(paths: &Paths) -> impl FnMut() -> bool + use<'_> {
    let mut reported = false;
    move || {
        let Ok(Some(holder)) = Holder::of(paths) else { return false };
        let asked = read_record(&asker(paths), 64).ok().and_then(|pid| pid.parse().ok());
        if asked == Some(holder.pid) {
            return false;
        }
        if !reported {
            tracing::warn!("{}; waiting for its end before a reboot by force", holder.doing());
            reported = true;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::lock::{Lock, Work};

    #[test]
    fn whoever_holds_the_lock_works_but_not_the_one_who_waits_for_the_reboot() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        note_asker(&paths);
        assert!(!is_under_way(&paths)());
        let lock = Lock::take(&paths, "update", Work::Update).unwrap();
        let mut is_under_way = is_under_way(&paths);
        assert!(is_under_way());
        // The holder is this process.
        note_asker(&paths);
        assert!(!is_under_way());
        // Another job runs when the next reboot is asked for.
        lock.release();
        note_asker(&paths);
        let lock = Lock::take(&paths, "update", Work::Update).unwrap();
        assert!(is_under_way());
        lock.release();
        assert!(!is_under_way());
    }
}
