//! Boot state and boot partition.

use std::io;
use std::path::Path;

use super::{Findings, Patient};
use crate::boot_files::recovered;
use crate::boot_state::{self, BootState, Named};
use crate::error::{Code, Error};
use crate::state::phase;
use crate::sys::file::{FileKind, Folder, Obstacle, Owners, is_temporary};
use crate::sys::mount;
use crate::update::preflight;

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
            "`copal rollback stop` selects the running system for good, with a count of 0; see `copal status` before",
        );
    }
    for (warning, hint) in backend.warnings() {
        found.warn(warning, hint);
    }
    let file = backend.file().display();
    let invalid = |why: String| Error::new(Code::BootStateInvalid, why).object(backend.file().display());
    let repair = "run `copal rollback boot-check` before the device restarts";
    if let Some(damage) = &state.damage {
        let text = format!("{file} is damaged: {damage}; {}", consequence(&state, backend.name()));
        return found.problem(&invalid(text).with_hint(repair));
    }
    match patient.roots.map(|roots| Ok((roots, phase::observe(patient.paths, roots)?))).transpose() {
        Ok(Some((roots, seen))) if seen.state.needs_repair(&roots.active) => {
            let text = format!("{file} selects no root; {}", consequence(&state, backend.name()));
            found.problem(&invalid(text).with_hint(repair));
        }
        Ok(Some((roots, seen))) if seen.selected.is_none() && roots.inactive().is_ok() => {
            found.problem(&invalid(format!("{file} selects neither of the two root partitions")));
        }
        Ok(None) if !backend.may_be_root(&state.root) => {
            found.problem(&invalid(format!("{file} selects neither of the two root partitions")));
        }
        // Not a device that was never updated: that has no such file.
        Ok(seen) if !state.selected && backend.file().exists() => {
            let text = format!("{file} selects no root; {}", consequence(&state, backend.name()));
            match seen {
                Some(_) => found.warn(text, "`copal rollback stop` selects the running system for good"),
                None => found.problem(&invalid(text).with_hint(repair)),
            }
        }
        Ok(_) => found.ok(format!("{} keeps its state in {file}", backend.name())),
        Err(e) => found.problem(&e),
    }
}

/// For a root that the bootloader does not find in the file.
fn consequence(state: &BootState, bootloader: &str) -> String {
    match &state.root {
        _ if state.selected => format!("{bootloader} finds the root, but perhaps not all of the selection"),
        Named::Other(_) => format!("{bootloader} finds no root to start"),
        Named::Slot(slot) => format!("{bootloader} takes root {slot}"),
        Named::Index(index) => format!("{bootloader} takes partition {index}"),
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
            &Error::new(Code::BootStateUnwritable, format!("{shown} is mounted read-only"))
                .object(shown)
                .with_hint(preflight::CHECK_BOOT),
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
    match recovered::list(&folder) {
        Ok(files) if !files.is_empty() => found.warn(
            format!("{shown} has files that fsck has recovered: {}", recovered::named(&files)),
            "look whether one of them is a file of yours; an update that is short of space moves them to /mnt/data/copal/fsck",
        ),
        _ => {}
    }
    let mut left = Temporaries::default();
    left.collect(&folder, Path::new(""), 0);
    if !left.removable.is_empty() {
        found.warn(
            format!("{shown} has temporary files of interrupted writes: {}", left.removable.join(", ")),
            "nothing to do: the next update or rollback removes them",
        );
    }
    for (name, why) in left.kept {
        let remedy = match why {
            Obstacle::Shared(_) => format!(
                "unmount the partition, run `fsck.fat -r` on its device, and let it truncate {name}, not the other file; \
                 the next update removes it then"
            ),
            Obstacle::Unknown(_) => {
                "the next update looks again; if this remains, unmount the partition and run \
                `fsck.fat -n` on its device, which reports the damage"
                    .to_owned()
            }
        };
        found.warn(format!("{shown}/{name}, of an interrupted write, stays: {why}"), &remedy);
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

/// Temporary and side files, by their paths below the partition.
#[derive(Default)]
struct Temporaries {
    removable: Vec<String>,
    kept: Vec<(String, Obstacle)>,
    owners: Owners,
}

impl Temporaries {
    /// Four folders deep: deeper than any image has files.
    fn collect(&mut self, folder: &Folder, below: &Path, depth: u8) {
        let Ok(list) = folder.list() else { return };
        for (name, kind) in list {
            let text = name.to_string_lossy();
            let shown = below.join(&name).display().to_string();
            let side = text.starts_with('.') && (text.ends_with(".md5sum") || text.ends_with(".tmp"));
            if is_temporary(&name) && kind == Some(FileKind::File) {
                match folder.obstacle(&name, &mut self.owners) {
                    Ok(None) => self.removable.push(shown),
                    Ok(Some(why)) => self.kept.push((shown, why)),
                    // Removed meanwhile.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => self.kept.push((shown, Obstacle::Unknown(e.to_string()))),
                }
            } else if is_temporary(&name) || side {
                self.removable.push(shown);
            } else if depth < 4
                && kind == Some(FileKind::Folder)
                && let Ok(inner) = folder.enter(&name)
            {
                self.collect(&inner, &below.join(&name), depth + 1);
            }
        }
    }
}

#[cfg(all(test, feature = "crash-points"))]
mod tests {
    use super::super::{Finding, Verdict};
    use super::*;
    use crate::config::paths::Paths;
    use crate::sys::crash_point::{self, Answer};

    #[test]
    fn a_temporary_file_that_stays_is_reported_with_the_other_file_and_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        std::fs::create_dir_all(paths.boot().join("EFI")).unwrap();
        for name in ["CPL00001.TMP", "EFI/CPL00002.TMP"] {
            std::fs::write(paths.boot().join(name), "").unwrap();
        }
        let armed = crash_point::arm(|step, path| match step {
            "owners" if path.ends_with("EFI/CPL00002.TMP") => Err(io::Error::other(Answer("VMLINUZ".into()))),
            _ => Ok(()),
        });
        let mut all = Vec::new();
        let patient = Patient { paths: &paths, facts: None, roots: None };
        partition(&patient, &mut Findings { check: "boot-partition", all: &mut all });
        drop(armed);
        let about = |name: &str| -> Vec<&Finding> { all.iter().filter(|f| f.text.contains(name)).collect() };
        let (removed, kept) = (about("CPL00001.TMP"), about("EFI/CPL00002.TMP"));
        assert!(matches!(removed[..], [f] if f.hint.as_deref().unwrap().starts_with("nothing to do")));
        let [kept] = kept[..] else { panic!("{all:?}") };
        assert!(kept.verdict == Verdict::Warning && kept.text.contains("VMLINUZ"), "{kept:?}");
        assert!(kept.hint.as_deref().unwrap().contains("fsck.fat -r"), "{kept:?}");
    }
}
