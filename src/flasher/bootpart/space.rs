//! Whether it fits, counted as the file system counts: whole clusters, folder entries, and the second copy that a file needs
//! while it is replaced.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::error::{Code, Error};
use crate::sys::file::Space;

/// Bytes of one entry of a FAT folder; a long name takes one for every 13 of its characters, and one more.
const ENTRY: u64 = 32;

/// What one file system will be asked for, step by step.
#[derive(Debug)]
pub(super) struct Budget {
    space: Space,
    /// Units in use beyond those of today; negative once more has been freed than taken.
    now: i128,
    peak: i128,
    /// New entries by folder.
    entries: BTreeMap<PathBuf, u64>,
}

impl Budget {
    pub(super) fn new(space: Space) -> Budget {
        Budget { space, now: 0, peak: 0, entries: BTreeMap::new() }
    }

    fn units(&self, bytes: u64) -> i128 {
        i128::from(bytes.div_ceil(self.space.unit))
    }

    /// Writes a file of `new` bytes, then frees one of `old`.
    pub(super) fn replace(&mut self, old: u64, new: u64) {
        self.now += self.units(new);
        self.peak = self.peak.max(self.now);
        self.free(old);
    }

    /// Room for something of `bytes` that stays.
    pub(super) fn take(&mut self, bytes: u64) {
        self.replace(0, bytes);
    }

    /// Removes a file.
    pub(super) fn free(&mut self, bytes: u64) {
        self.now -= self.units(bytes);
    }

    /// A name that `folder` does not have yet.
    pub(super) fn name(&mut self, folder: &Path, name: &OsStr) {
        *self.folder(folder) += entries_of(name);
    }

    /// A folder that something is written to, so that it needs an entry for the temporary.
    pub(super) fn folder(&mut self, folder: &Path) -> &mut u64 {
        self.entries.entry(folder.to_owned()).or_insert(1)
    }

    /// New entries in a folder.
    pub(super) fn new_entries(&self, folder: &Path) -> u64 {
        self.entries.get(folder).copied().unwrap_or(0)
    }

    /// The largest number of bytes it will ask for, beyond those that are in use today.
    fn needed(&self) -> u64 {
        let folders: i128 = self.entries.values().map(|n| self.units(n * ENTRY)).sum();
        let units = u64::try_from(self.peak + folders).unwrap_or(0);
        units.saturating_mul(self.space.unit)
    }

    /// `BootPartitionFull` when it does not fit.
    pub(super) fn check(&self, place: &Path) -> Result<(), Error> {
        let (needed, free) = (self.needed(), self.space.free.saturating_mul(self.space.unit));
        if needed <= free {
            return Ok(());
        }
        Err(Error::new(
            Code::BootPartitionFull,
            format!(
                "cannot copy the boot files to {}: {needed} bytes are needed, in units of {}, and {free} are free",
                place.display(),
                self.space.unit
            ),
        )
        .object(place.display())
        .after_write())
    }
}

/// Entries that a name takes in a FAT folder, at most.
pub(super) fn entries_of(name: &OsStr) -> u64 {
    let characters = name.to_string_lossy().encode_utf16().count();
    1 + u64::try_from(characters).unwrap_or(u64::MAX).div_ceil(13)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed(steps: impl Fn(&mut Budget)) -> u64 {
        let mut budget = Budget::new(Space { unit: 2048, free: 0 });
        steps(&mut budget);
        budget.needed()
    }

    #[test]
    fn whole_clusters_and_a_second_copy_while_replacing() {
        assert_eq!(needed(|_| ()), 0);
        assert_eq!(needed(|b| b.take(1)), 2048);
        assert_eq!(needed(|b| b.replace(5000, 5000)), 3 * 2048);
        // One after the other: only the largest is there twice.
        let both = |b: &mut Budget| {
            b.replace(5000, 5000);
            b.replace(9000, 9000);
        };
        assert_eq!(needed(both), 5 * 2048);
        // What is freed counts from then on, not before.
        let before = |b: &mut Budget| {
            b.free(4096);
            b.take(6000);
        };
        let after = |b: &mut Budget| {
            b.take(6000);
            b.free(4096);
        };
        assert_eq!((needed(before), needed(after)), (2048, 3 * 2048));
    }

    #[test]
    fn names_need_room_too() {
        assert_eq!(entries_of(OsStr::new("a")), 2);
        assert_eq!(entries_of(OsStr::new("fourteen chars")), 3);
        let many = |b: &mut Budget| {
            for i in 0..100 {
                b.name(Path::new("f"), OsStr::new(&format!("{i}")));
            }
        };
        assert_eq!(needed(many), 4 * 2048); // 201 entries of 32 bytes
    }
}
