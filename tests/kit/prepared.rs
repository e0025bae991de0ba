//! What `qemu/prepare.sh` has prepared: programs, firmware and systems that this machine does not have itself.
#![allow(dead_code, unreachable_pub)] // no test program uses all of it

use std::path::PathBuf;

/// The folder that `qemu/prepare.sh` filled.
pub fn prepared() -> PathBuf {
    if let Some(dir) = std::env::var_os("COPAL_GUESTS") {
        return dir.into();
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|v| !v.is_empty()).map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"),
        PathBuf::from,
    );
    cache.join("copal/guests")
}

/// A part of it, or the reason why it is not there, which `qemu/prepare.sh` leaves beside it.
pub fn part(name: &str) -> Result<PathBuf, String> {
    let at = prepared().join(name);
    if at.join("stamp").is_file() {
        return Ok(at);
    }
    let why = std::fs::read_to_string(prepared().join(format!("{name}.why")));
    let why = why.as_deref().map_or("see qemu/prepare.sh", str::trim);
    Err(format!("no {}: {why}", at.display()))
}
