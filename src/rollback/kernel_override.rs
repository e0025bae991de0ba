//! The kernel override of a slot: an extension's kernel instead of the slot's own.
//!
//! The balena bootloader starts the kernel that `kernel_override_abi` of its environment names, with `balena_kernel_abi=` on the command
//! line; without the variable, or such a kernel, the slot's own (meta-balena, `initrdscripts/files/kexec`). `kernel_override_abi_committed_A`
//! and `…_B` have the override with which a slot was committed: a rollback restores it, as the bootloader does when it falls back
//! (`os-helpers-bootenv`, `initrdscripts/files/abroot`).
//!
//! A failure here is only logged: it must not cost a rollback or a commit. U-Boot has no such variables.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use crate::boot_state::Backend;
use crate::config::paths::Paths;
use crate::slot::Slot;
use crate::sys::file::{self, Content, Folder};

const ACTIVE_VARIABLE: &str = "kernel_override_abi";

/// Records that an override was reverted.
const TRIGGERED_FILE: &str = "override-health-triggered";

const PARAMETER: &str = "balena_kernel_abi=";

const fn committed(slot: Slot) -> &'static str {
    match slot {
        Slot::A => "kernel_override_abi_committed_A",
        Slot::B => "kernel_override_abi_committed_B",
    }
}

/// Replaces an active override by the one with which `old` was committed, or removes it; writes `override-health-triggered`, and flushes both
/// file systems. To be called before the hooks of the old system run.
pub fn restore(paths: &Paths, backend: &dyn Backend, old: Slot) {
    let read =
        backend.variable(ACTIVE_VARIABLE).and_then(|active| Ok((active, backend.variable(committed(old))?)));
    let (active, committed_abi) = match read {
        // Done by an interrupted rollback, or there is no other override.
        Ok((active, committed_abi)) if active == committed_abi => return,
        Ok((Some(active), committed_abi)) => (active, committed_abi),
        Ok((None, _)) => return,
        Err(e) => return tracing::warn!("{e}; keeping the kernel override"),
    };
    let to = committed_abi.as_deref().unwrap_or("none");
    tracing::info!("replacing the kernel override {active} by that of slot {old}, {to}");
    if let Err(e) = backend.set_variables(&[(ACTIVE_VARIABLE, committed_abi.as_deref())]) {
        tracing::warn!("{e}; rolling back with the kernel override {active}");
    }
    // As `date -Iseconds` prints it in UTC.
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace('Z', "+00:00");
    let line = format!("{now}: from={active} to={to} slot={old}\n");
    let state = paths.state();
    let written = Folder::open(&state).and_then(|folder| {
        file::sweep(&folder)?;
        file::replace(&folder, OsStr::new(TRIGGERED_FILE), &Content::Bytes(line.as_bytes()))
    });
    if let Err(e) = written {
        tracing::warn!("cannot write {}: {e}", state.join(TRIGGERED_FILE).display());
    }
    for place in [&paths.plain_boot(), &state] {
        flush(place);
    }
}

/// Commits an active override for `running`, if it is the one that runs.
pub fn commit(paths: &Paths, backend: &dyn Backend, running: Slot) {
    let active = match backend.variable(ACTIVE_VARIABLE) {
        Ok(Some(active)) => active,
        Ok(None) => return,
        Err(e) => return tracing::warn!("{e}; not committing the kernel override"),
    };
    let booted = booted(paths);
    if booted.as_deref() != Some(active.as_str()) {
        let booted = booted.as_deref().unwrap_or("the kernel of the slot");
        return tracing::warn!(
            "kernel override {active} did not boot, but {booted}; it is not committed for slot {running}"
        );
    }
    match backend.set_variables(&[(committed(running), Some(&active))]) {
        Ok(()) => tracing::info!("kernel override {active} is committed for slot {running}"),
        Err(e) => tracing::warn!("{e}; kernel override {active} is not committed for slot {running}"),
    }
}

/// The override that runs. Of several the last counts, as for the kernel.
fn booted(paths: &Paths) -> Option<String> {
    let line = match fs::read_to_string(paths.at("/proc/cmdline")) {
        Ok(line) => line,
        Err(e) => {
            tracing::warn!("cannot read /proc/cmdline: {e}");
            return None;
        }
    };
    let last = line.split_whitespace().rev().find_map(|word| word.strip_prefix(PARAMETER))?;
    (!last.is_empty()).then(|| last.to_owned())
}

fn flush(place: &Path) {
    if let Err(e) = file::sync_file_system(place) {
        tracing::warn!("cannot flush {}: {e}", place.display());
    }
}
