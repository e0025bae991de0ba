//! Lines on stderr and stdout.
//!
//! One write per line, so that lines of several processes do not mix. A failed write is ignored: a lost message is better than a
//! lost job.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use nix::libc::{O_NOCTTY, O_NONBLOCK};

use crate::sys::output::BoundedOutput;

static STDERR: LazyLock<BoundedOutput<std::io::Stderr>> =
    LazyLock::new(|| BoundedOutput::new(std::io::stderr()));

static STDOUT: LazyLock<BoundedOutput<std::io::Stdout>> =
    LazyLock::new(|| BoundedOutput::new(std::io::stdout()));

/// Whether the terminal's last line is a drawing, which the next line replaces.
static DRAWN: Mutex<bool> = Mutex::new(false);

/// To the begin of the terminal's line, and clears it (ECMA-48, EL).
const CLEAR: &str = "\r\u{1b}[K";

fn drawn() -> MutexGuard<'static, bool> {
    DRAWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the last drawing by `text`, which is shorter than a line; without text, clears it. Nothing is drawn on a stopped terminal (Ctrl-S, a
/// dead connection): it must not stop the job.
pub fn draw(text: Option<&str>) {
    let mut drawn = drawn();
    match text {
        Some(text) => *drawn |= STDERR.line(format!("{CLEAR}{text}").as_bytes()).is_ok(),
        None => erase(&mut drawn),
    }
}

fn erase(drawn: &mut bool) {
    if *drawn && STDERR.line(CLEAR.as_bytes()).is_ok() {
        *drawn = false;
    }
}

pub fn stderr(line: &str) {
    write(&STDERR, line);
}

pub(super) fn stdout(line: &str) {
    write(&STDOUT, line);
}

fn write<F: AsFd>(out: &BoundedOutput<F>, line: &str) {
    // Held: no drawing comes between.
    let mut drawn = drawn();
    erase(&mut drawn);
    // There is no other place to report a failure.
    drop(out.line(format!("{line}\n").as_bytes()));
}

/// Writes the line that explains the exit code; waits for a slow reader.
pub(super) fn last_line(line: &str) {
    let clear = if *drawn() { CLEAR } else { "" };
    drop(STDERR.last_line(format!("{clear}{line}\n").as_bytes()));
}

/// Writes a line to the console at `path`, which may take none.
pub(super) fn console(path: &Path, line: &str) {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(O_NOCTTY | O_NONBLOCK);
    if let Ok(console) = options.open(path) {
        drop(BoundedOutput::new(console).last_line(format!("{line}\n").as_bytes()));
    }
}

/// Whether `out` ends in the journal: `$JOURNAL_STREAM` has device and inode of the stream to which systemd connected the
/// service, and `out` is still that stream.
pub(super) fn is_the_journals(stream: Option<&str>, out: impl AsFd) -> bool {
    let named = stream.and_then(|s| s.split_once(':'));
    let named = named.and_then(|(dev, inode)| Some((dev.parse().ok()?, inode.parse().ok()?)));
    let own = nix::sys::stat::fstat(out).map(|s| (s.st_dev, s.st_ino));
    named.is_some() && named == own.ok()
}
