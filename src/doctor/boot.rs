//! Boot state and boot partition.

use std::ffi::OsString;
use std::path::Path;

use super::{Findings, Patient};
use crate::boot_state;
use crate::error::{Code, Error};
use crate::state::phase;
use crate::sys::file::{Folder, is_temporary};
use crate::sys::mount;

/// Free entries that a FAT's top folder needs for `bootcount.env` and a temporary file, each perhaps with a long name.
const FEW_ENTRIES: u64 = 8;
/// Bytes. copal leaves as much free when it deploys boot files.
const LITTLE_ROOM: u64 = 512 << 10;

pub(super) fn state(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let backend = match boot_state::detect(patient.paths) {
        Ok(backend) => backend,
        Err(e) => return found.problem(&e),
    };
    let state = match backend.read() {
        Ok(state) => state,
        Err(e) => return found.problem(&e),
    };
    found.ok(format!("{} keeps its state in {}", backend.name(), backend.file().display()));
    if !backend.counts() {
        found.warn(
            "this bootloader counts no attempts: an update that does not boot is not rolled back",
            "install an image that has `upgrade_available` in its grubenv",
        );
    }
    if backend.is_exceeded(state.bootcount) {
        found.warn(
            format!(
                "the bootloader has counted {} attempts: it falls back to the other root",
                state.bootcount
            ),
            "see `copal status`; a completed or undone update sets the count to 0",
        );
    }
    let Some(roots) = patient.roots else { return };
    match phase::observe(patient.paths, roots) {
        Ok(seen) if seen.selected.is_none() && roots.inactive.is_some() => found.problem(
            &Error::new(
                Code::BootStateInvalid,
                format!("{} selects neither of the two root partitions", backend.file().display()),
            )
            .object(backend.file().display()),
        ),
        Ok(_) => {}
        Err(e) => found.problem(&e),
    }
}

pub(super) fn partition(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let (boot, plain) = (patient.paths.boot(), patient.paths.plain_boot());
    one(patient, &boot, found);
    if plain != boot {
        one(patient, &plain, found);
    }
}

fn one(patient: &Patient<'_>, point: &Path, found: &mut Findings<'_>) {
    let shown = &point.display();
    let folder = match Folder::open(point) {
        Ok(folder) => folder,
        Err(e) => {
            let e = Error::new(Code::BootStateUnwritable, format!("cannot open {shown}"))
                .object(shown)
                .because(e);
            return found.problem(&e);
        }
    };
    if read_only(patient, point) {
        found.problem(
            &Error::new(Code::BootStateUnwritable, format!("{shown} is mounted read-only")).object(shown),
        );
    }
    match folder.space() {
        Ok(space) if space.free.saturating_mul(space.unit) < LITTLE_ROOM => found.warn(
            format!("{shown} has {} bytes free", space.free.saturating_mul(space.unit)),
            "remove files that do not belong there: an update needs space for a second copy of each boot file",
        ),
        Ok(space) => found.ok(format!("{shown} has {} bytes free", space.free.saturating_mul(space.unit))),
        Err(e) => {
            found
                .warn(format!("cannot read the free space of {shown}: {e}"), "look at the kernel log for it");
        }
    }
    entries(&folder, found);
    let mut names = Vec::new();
    collect_temporaries(&folder, Path::new(""), 0, &mut names);
    if !names.is_empty() {
        let names: Vec<_> = names.iter().map(|n| n.to_string_lossy()).collect();
        found.warn(
            format!("{shown} has temporary files of interrupted writes: {}", names.join(", ")),
            "nothing to do: the next update or rollback removes them",
        );
    }
}

/// U-Boot creates `bootcount.env` itself, and does not report a failure.
fn entries(folder: &Folder, found: &mut Findings<'_>) {
    let Ok(Some(limit)) = folder.top_entries() else { return };
    let Ok(list) = folder.list() else { return };
    let used: u64 = list.iter().map(|(n, _)| 1 + u64::try_from(n.len()).unwrap_or(0).div_ceil(13)).sum();
    if limit.saturating_sub(used) < FEW_ENTRIES {
        found.problem(
            &Error::new(
                Code::BootPartitionFull,
                format!(
                    "the top folder of {} has {limit} entries, and nearly all are used",
                    folder.path().display()
                ),
            )
            .object(folder.path().display())
            .with_hint("remove files from it: the bootloader cannot create its boot count there"),
        );
    }
}

fn read_only(patient: &Patient<'_>, point: &Path) -> bool {
    let Ok(mounts) = mount::read_mounts(&patient.paths.at("/proc/self/mountinfo")) else { return false };
    let inside = Path::new("/").join(point.strip_prefix(patient.paths.root()).unwrap_or(point));
    mounts.iter().rev().find(|m| m.point == inside).is_some_and(|m| m.options.iter().any(|o| o == "ro"))
}

/// Temporary and side files, four folders deep: deeper than any image has files.
fn collect_temporaries(folder: &Folder, below: &Path, depth: u8, names: &mut Vec<OsString>) {
    let Ok(list) = folder.list() else { return };
    for (name, kind) in list {
        let text = name.to_string_lossy();
        let side = text.starts_with('.') && (text.ends_with(".md5sum") || text.ends_with(".tmp"));
        if is_temporary(&name) || side {
            names.push(below.join(&name).into());
        } else if depth < 4
            && kind == Some(crate::sys::file::FileKind::Folder)
            && let Ok(inner) = folder.enter(&name)
        {
            collect_temporaries(&inner, &below.join(&name), depth + 1, names);
        }
    }
}
