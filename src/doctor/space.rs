//! Free space on the partitions that an update writes to.

use std::path::Path;

use super::{Findings, Patient};
use crate::error::{Code, Error};
use crate::sys::file::Folder;
use crate::update::preflight;

/// Little for any archive. The real size is known only when the archive is there.
const LITTLE_DATA_SPACE: u64 = 64 << 20;

pub(super) fn look(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let paths = patient.paths;
    state(&paths.state(), found);
    data(&paths.data(), found);
    let inactive = paths.inactive();
    match free(&inactive) {
        Ok(bytes) => found.ok(format!(
            "{} has {bytes} bytes free, without the space of its old hostapp",
            inactive.display()
        )),
        Err(e) => found.problem(&unreadable(&inactive, Code::SlotUnknown, e)),
    }
}

fn state(place: &Path, found: &mut Findings<'_>) {
    let least = preflight::STATE;
    match free(place) {
        Ok(bytes) if bytes < least => found.problem(
            &Error::new(
                Code::StateUnwritable,
                format!("{} has {bytes} bytes free, and {least} are needed", place.display()),
            )
            .object(place.display())
            .with_hint("free space on it"),
        ),
        Ok(bytes) => found.ok(format!("{} has {bytes} bytes free", place.display())),
        Err(e) => found.problem(&unreadable(place, Code::StateUnwritable, e)),
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
