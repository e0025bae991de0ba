//! What this machine has for guests: the prepared folder, the binary under test, room for two guests at once.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) use crate::kit::needs::not_run;
pub(crate) use crate::kit::prepared::{part, prepared};

/// How long a guest may take. Half a minute is what most of them need; this is for machines that have much else to do, and only
/// a guest that hangs takes as long.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

/// How long a guest may wait for its turn. All tests of this program start at once.
const TURN: Duration = Duration::from_secs(2400);

/// Guests that run at the same time, over all programs of this user: each takes a processor.
const GUESTS: u32 = 2;

/// The static release binary, which runs without anything else in a guest.
pub(crate) fn copal() -> PathBuf {
    let dist = std::env::var_os("COPAL_DIST")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target/dist"), PathBuf::from);
    let path = dist.join("copal-x86_64");
    assert!(path.is_file(), "{} is not there: run ./dev build", path.display());
    path
}

/// A folder on a disk, for images.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("guest-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs a tool that must succeed, and gives what it printed. Names of files are UTF-8 to it, whatever the user's language is.
pub(crate) fn tool(argv: &[&str]) -> String {
    let mut command = Command::new(argv[0]);
    let out = command.args(&argv[1..]).env("LC_ALL", "C.UTF-8").output();
    let out = out.unwrap_or_else(|e| panic!("{argv:?}: {e}"));
    assert!(out.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// One of the places for guests; free again when this is dropped, or its program ends.
pub(crate) struct Place(#[allow(dead_code)] File);

pub(crate) fn take_place() -> Place {
    let start = Instant::now();
    loop {
        for n in 0..GUESTS {
            let path = prepared().join(format!("place-{n}"));
            let file = File::options().create(true).append(true).open(&path).unwrap();
            match file.try_lock() {
                Ok(()) => return Place(file),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => panic!("{}: {e}", path.display()),
            }
        }
        assert!(start.elapsed() < TURN, "no place for another guest within {} s", TURN.as_secs());
        std::thread::sleep(Duration::from_millis(100));
    }
}
