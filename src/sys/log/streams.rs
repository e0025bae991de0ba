//! Lines on stderr and stdout.
//!
//! One write per line, so that lines of several processes do not mix. A failed write is ignored: a lost message is better than a
//! lost job.

use std::os::fd::AsFd;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::sys::output::BoundedOutput;

static STDERR: LazyLock<BoundedOutput<std::io::Stderr>> =
    LazyLock::new(|| BoundedOutput::new(std::io::stderr()));

static STDOUT: LazyLock<BoundedOutput<std::io::Stdout>> =
    LazyLock::new(|| BoundedOutput::new(std::io::stdout()));

static ASIDE: Mutex<Option<Aside>> = Mutex::new(None);

/// Wraps the write of a line, such as a progress bar that must be hidden meanwhile.
type Aside = Box<dyn Fn(&mut dyn FnMut()) + Send>;

pub fn aside(around: Option<Aside>) {
    *ASIDE.lock().unwrap_or_else(PoisonError::into_inner) = around;
}

/// Whether stderr accepts output now; not for a stopped terminal, or a pipe without a reader.
pub fn is_open() -> bool {
    STDERR.is_open()
}

pub fn stderr(line: &str) {
    write(&STDERR, line);
}

pub(super) fn stdout(line: &str) {
    write(&STDOUT, line);
}

fn write<F: AsFd>(out: &BoundedOutput<F>, line: &str) {
    if !out.is_open() {
        return;
    }
    let text = format!("{line}\n");
    let mut write = || {
        // There is no other place to report a failure.
        drop(out.line(text.as_bytes()));
    };
    match &*ASIDE.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(around) => around(&mut write),
        None => write(),
    }
}

/// Writes the line that explains the exit code; waits for a slow reader.
pub(super) fn last_line(line: &str) {
    drop(STDERR.last_line(format!("{line}\n").as_bytes()));
}

/// Whether `out` ends in the journal: `$JOURNAL_STREAM` has device and inode of the stream to which systemd connected the
/// service, and `out` is still that stream.
pub(super) fn is_the_journals(stream: Option<&str>, out: impl AsFd) -> bool {
    let named = stream.and_then(|s| s.split_once(':'));
    let named = named.and_then(|(dev, inode)| Some((dev.parse().ok()?, inode.parse().ok()?)));
    let own = nix::sys::stat::fstat(out).map(|s| (s.st_dev, s.st_ino));
    named.is_some() && named == own.ok()
}
