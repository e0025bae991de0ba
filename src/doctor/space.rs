//! Room on the partitions that an update writes to.

use std::path::Path;

use super::{Findings, Patient};
use crate::error::{Code, Error};
use crate::sys::file::Folder;
use crate::update::preflight;

/// Less than this on the data partition is little for any archive. How much one needs is known when it is there.
const DATA: u64 = 64 << 20;

pub(super) fn look(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let paths = patient.paths;
    state(&paths.state(), found);
    data(&paths.data(), found);
    let inactive = paths.inactive();
    match free(&inactive) {
        Ok(bytes) => found
            .ok(format!("{} has {bytes} bytes free, besides what its old hostapp takes", inactive.display())),
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
            .with_hint("make room on it"),
        ),
        Ok(bytes) => found.ok(format!("{} has {bytes} bytes free", place.display())),
        Err(e) => found.problem(&unreadable(place, Code::StateUnwritable, e)),
    }
}

/// Only an archive is unpacked there, and only where there is one: it stops no other update, and no rollback.
fn data(place: &Path, found: &mut Findings<'_>) {
    const HINT: &str = "make room on it before an update from an archive, or install from a registry";
    match free(place) {
        Ok(bytes) if bytes < DATA => {
            found.warn(format!("{} has only {bytes} bytes free", place.display()), HINT);
        }
        Ok(bytes) => found.ok(format!("{} has {bytes} bytes free", place.display())),
        Err(e) => found.warn(
            format!("cannot open {}: {e}", place.display()),
            "look whether the data partition is mounted: the applications need it, an update does not",
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
