//! Lines on stderr.
//!
//! A line is written with one call, so that lines of several processes do not mix, and a stderr that cannot be written
//! to never matters: losing a message is better than losing the job.

use std::sync::{LazyLock, Mutex, PoisonError};

use crate::sys::output::Patient;

static STDERR: LazyLock<Patient<std::io::Stderr>> = LazyLock::new(|| Patient::new(std::io::stderr()));

static ASIDE: Mutex<Option<Aside>> = Mutex::new(None);

/// Something that must step aside while a line is written, such as a progress bar: it is called with the write.
pub type Aside = Box<dyn Fn(&mut dyn FnMut()) + Send>;

/// Sets or removes what steps aside.
pub fn aside(around: Option<Aside>) {
    *ASIDE.lock().unwrap_or_else(PoisonError::into_inner) = around;
}

/// Whether stderr takes output now: a terminal that is stopped, or a pipe that nobody reads, does not.
pub fn is_open() -> bool {
    STDERR.is_open()
}

/// Writes one line to stderr, around whatever [`aside`] names, if stderr takes it.
pub fn stderr(line: &str) {
    if !is_open() {
        return;
    }
    let text = format!("{line}\n");
    let mut write = || {
        // Nobody is left who could be told.
        drop(STDERR.line(text.as_bytes()));
    };
    match &*ASIDE.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(around) => around(&mut write),
        None => write(),
    }
}

/// Writes the line that explains the exit code: a slow reader is waited for.
pub(super) fn last_line(line: &str) {
    drop(STDERR.last_line(format!("{line}\n").as_bytes()));
}

/// Whether what is written to stderr ends in the journal: `$JOURNAL_STREAM` names the device and inode of the stream
/// that systemd connected a service to, and stderr is still that one.
pub(super) fn is_the_journals(stream: Option<&str>) -> bool {
    let named = stream.and_then(|s| s.split_once(':'));
    let named = named.and_then(|(dev, inode)| Some((dev.parse().ok()?, inode.parse().ok()?)));
    let own = nix::sys::stat::fstat(std::io::stderr()).map(|s| (s.st_dev, s.st_ino));
    named.is_some() && named == own.ok()
}
