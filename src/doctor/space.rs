//! Free space on the partitions that an update writes to.

use std::path::Path;

use super::{Findings, Patient};
use crate::config::paths::Paths;
use crate::error::{Code, Error};
use crate::sys::file::Folder;
use crate::update::preflight::{self, Inodes};

/// Little for any archive. The real size is known only when the archive is there.
const LITTLE_DATA_SPACE: u64 = 64 << 20;

pub(super) fn look(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let paths = patient.paths;
    state(paths, found);
    data(&paths.data(), found);
    let inactive = paths.inactive();
    match free(&inactive) {
        Ok(bytes) => found.ok(format!(
            "{} has {bytes} bytes free, without the space of its old hostapp",
            inactive.display()
        )),
        Err(e) => found.problem(&unreadable(&inactive, Code::SlotUnknown, e)),
    }
    inodes(&paths.active(), &inactive, found);
}

/// Whether the other slot can have as many files as the running one.
fn inodes(active: &Path, inactive: &Path, found: &mut Findings<'_>) {
    let (Ok(Some(running)), Ok(Some(other))) = (Inodes::of(active), Inodes::of(inactive)) else { return };
    let used = running.total.saturating_sub(running.free);
    if used <= other.total {
        return;
    }
    let shown = inactive.display();
    let message = format!("{shown} has {} inodes, and the running slot uses {used}", other.total);
    found.problem(&Error::new(Code::SlotFull, message).object(shown).with_hint(
        "an update needs a release with fewer files than the running one: their number is fixed when the file system is made",
    ));
}

fn state(paths: &Paths, found: &mut Findings<'_>) {
    let place = paths.state();
    match preflight::state_is_usable(paths)
        .and_then(|()| free(&place).map_err(|e| unreadable(&place, Code::StateUnwritable, e)))
    {
        Ok(bytes) => found.ok(format!("{} has {bytes} bytes free", place.display())),
        Err(e) => found.problem(&e),
    }
}

/// Only an archive is unpacked there. Every other update, and a rollback, works without it.
fn data(place: &Path, found: &mut Findings<'_>) {
    const HINT: &str = "free space on it before an update from an archive, or update from a registry";
    match free(place) {
        Ok(bytes) if bytes < LITTLE_DATA_SPACE => {
            found.warn(format!("{} has only {bytes} bytes free", place.display()), HINT);
        }
        Ok(bytes) => found.ok(format!("{} has {bytes} bytes free", place.display())),
        Err(e) => found.warn(
            format!("cannot open {}: {e}", place.display()),
            "check whether the data partition is mounted: the applications need it, an update does not",
        ),
    }
}

fn free(place: &Path) -> std::io::Result<u64> {
    let space = Folder::open(place)?.space()?;
    Ok(space.free.saturating_mul(space.unit))
}

fn unreadable(place: &Path, code: Code, e: std::io::Error) -> Error {
    Error::new(code, format!("cannot open {}", place.display())).object(place.display()).because(e)
}
