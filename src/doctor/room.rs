//! Room on the partitions that an update writes to.

use std::path::Path;

use super::{Findings, Patient};
use crate::error::{Code, Error};
use crate::sys::file::Folder;

/// What the small files of an update take on the state partition, with plenty to spare.
const STATE: u64 = 1 << 20;
/// Unpacking an image needs room for one of its layers; this much is little.
const DATA: u64 = 64 << 20;

pub(super) fn look(patient: &Patient<'_>, found: &mut Findings<'_>) {
    let paths = patient.paths;
    one(&paths.state(), STATE, Code::StateUnwritable, found);
    one(&paths.data(), DATA, Code::SlotFull, found);
    let inactive = paths.inactive();
    match free(&inactive) {
        Ok(bytes) => found
            .ok(format!("{} has {bytes} bytes free, besides what its old hostapp takes", inactive.display())),
        Err(e) => found.problem(&unreadable(&inactive, Code::SlotUnknown, e)),
    }
}

fn one(place: &Path, least: u64, code: Code, found: &mut Findings<'_>) {
    match free(place) {
        Ok(bytes) if bytes < least => found.problem(
            &Error::new(code, format!("{} has {bytes} bytes free, and {least} are needed", place.display()))
                .object(place.display())
                .with_hint("make room on it"),
        ),
        Ok(bytes) => found.ok(format!("{} has {bytes} bytes free", place.display())),
        Err(e) => found.problem(&unreadable(place, code, e)),
    }
}

fn free(place: &Path) -> std::io::Result<u64> {
    let space = Folder::open(place)?.space()?;
    Ok(space.free.saturating_mul(space.unit))
}

fn unreadable(place: &Path, code: Code, e: std::io::Error) -> Error {
    Error::new(code, format!("cannot open {}", place.display())).object(place.display()).because(e)
}
