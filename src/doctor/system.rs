//! Files of interrupted updates, updates that run, the rules of a trial, and systemd.

use std::io;

use super::{Findings, Patient};
use crate::config::rollback_conf::{self, RollbackConf};
use crate::hooks;
use crate::job::lock::Holder;
use crate::state::files;
use crate::state::phase::{self, UpdatePermission};
use crate::sys::{mount, systemd};

/// Below the inactive slot.
const IN_THE_SLOT: [&str; 5] = ["hostapps/.new", "current.new", "kept-boot", "counter.new", "counter.tmp"];

pub(super) fn cleanup(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let inactive = patient.paths.inactive();
    let mut left = Vec::new();
    for name in IN_THE_SLOT {
        match inactive.join(name).symlink_metadata() {
            Ok(_) => left.push(name),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                let what =
                    format!("cannot look for files of an interrupted update in {}: {e}", inactive.display());
                return found.warn(what, "run it as root");
            }
            Err(_) => {}
        }
    }
    for name in &left {
        found.warn(
            format!("an interrupted update has left {}", inactive.join(name).display()),
            "nothing to do: the next update removes it",
        );
    }
    let tmp = std::path::Path::new(crate::slot::INACTIVE).join("balena/tmp");
    let mounts = mount::read_mounts(&patient.paths.at("/proc/self/mountinfo")).unwrap_or_default();
    let mounted = mounts.iter().any(|m| m.point == tmp);
    if mounted {
        found.warn(
            format!("{} is still mounted", tmp.display()),
            "nothing to do: the next update uses it, and unmounts it",
        );
    }
    if left.is_empty() && !mounted {
        found.ok("no files of an interrupted update");
    }
}

pub(super) fn update(patient: &Patient<'_>, found: &mut Findings<'_>) {
    match Holder::of(patient.paths) {
        Ok(Some(holder)) => found.warn(holder.doing(), holder.advice()),
        Ok(None) => {}
        Err(e) => found.warn(
            format!("cannot determine whether an update is running: {e}"),
            "run it as root, or restart the device, which empties /run/copal",
        ),
    }
    if let Ok(Some(hook)) = hooks::running(patient.paths) {
        found.warn(
            format!("the hook {} (process {}) has been running since {}", hook.name, hook.pid, hook.since),
            "wait until it has ended",
        );
    }
    for e in files::irregular_records(patient.paths) {
        found.warn(e.message(), e.hint());
    }
    let Some(seen) = patient.roots.and_then(|r| phase::observe(patient.paths, r).ok()) else { return };
    let text = format!("{}: {}", seen.phase, seen.phase.meaning());
    match seen.phase.update_permission() {
        UpdatePermission::Free => found.ok(text),
        UpdatePermission::AfterRecovery => {
            found.warn(text, "nothing to do: the next update repairs it first");
        }
        UpdatePermission::Forced | UpdatePermission::Never => {
            found.warn(text, "wait: until then no update can start");
        }
    }
}

/// Warnings: the programs that decide a trial tolerate every mistake.
pub(super) fn rollback_conf(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let (_, mistakes) = RollbackConf::read(patient.paths, &[]);
    if mistakes.is_empty() {
        found.ok(format!("no mistakes in {}", rollback_conf::FILE));
    }
    for e in mistakes {
        found.warn(format!("{}; a trial ignores it", e.message()), e.hint());
    }
}

pub(super) fn services(patient: &Patient<'_>, found: &mut Findings<'_>) {
    if systemd::is_running(patient.paths.root()) {
        found.ok("systemd runs here");
    } else {
        found.warn(
            "systemd does not run here",
            "run it on the device, not in a container: without systemd copal cannot request a reboot",
        );
    }
}
