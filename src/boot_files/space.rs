//! Whether everything fits, counted as the file system counts: whole clusters, folder entries, and the second copy of a file that
//! is being replaced.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::destination::{Destination, failed};
use crate::error::{Code, Error, Result};
use crate::sys::file::Space;

/// In bytes. A long name takes one entry for every 13 characters, and one more.
const ENTRY: u64 = 32;

#[derive(Debug)]
pub struct Budget {
    space: Space,
    /// Units in use, compared with today; negative once more was freed than taken.
    now: i128,
    peak: i128,
    shrunk: i128,
    entries: BTreeMap<PathBuf, u64>,
}

impl Budget {
    fn new(space: Space) -> Budget {
        Budget { space, now: 0, peak: 0, shrunk: 0, entries: BTreeMap::new() }
    }

    fn units(&self, bytes: u64) -> i128 {
        i128::from(bytes.div_ceil(self.space.unit))
    }

    /// The new file is written before the old one is freed.
    pub fn replace(&mut self, old: u64, new: u64) {
        self.now += self.units(new);
        self.peak = self.peak.max(self.now);
        self.shrunk += (self.units(old) - self.units(new)).max(0);
        self.free(old);
    }

    /// An undo needs the space that smaller new files have given back, while files that only the new release has are still there. It may
    /// use the reserve.
    pub(crate) fn reserve_for_undo(&mut self, reserve: u64) {
        self.peak = self.peak.max(self.now + self.shrunk - self.units(reserve));
    }

    pub fn take(&mut self, bytes: u64) {
        self.replace(0, bytes);
    }

    pub fn free(&mut self, bytes: u64) {
        self.now -= self.units(bytes);
    }

    pub fn name(&mut self, folder: &Path, name: &OsStr) {
        *self.folder(folder) += entries_of(name);
    }

    /// A folder that is written to needs an entry for the temporary file.
    pub fn folder(&mut self, folder: &Path) -> &mut u64 {
        self.entries.entry(folder.to_owned()).or_insert(1)
    }

    fn new_entries(&self, folder: &Path) -> u64 {
        self.entries.get(folder).copied().unwrap_or(0)
    }

    /// The largest use in bytes, compared with today.
    fn needed(&self) -> u64 {
        let folders: i128 = self.entries.values().map(|n| self.units(n * ENTRY)).sum();
        let units = u64::try_from(self.peak + folders).unwrap_or(0);
        units.saturating_mul(self.space.unit)
    }

    /// Fails unless `reserve` bytes remain.
    fn check(&self, place: &Path, reserve: u64) -> Result<()> {
        let (needed, free) = (self.needed(), self.space.free.saturating_mul(self.space.unit));
        if needed == 0 || needed.saturating_add(reserve) <= free {
            return Ok(());
        }
        let kept = if reserve == 0 { String::new() } else { format!(", {reserve} of which must stay free") };
        Err(Error::new(
            Code::BootPartitionFull,
            format!(
                "cannot copy the boot files to {}: {needed} bytes are needed, in units of {}, and {free} are free{kept}",
                place.display(),
                self.space.unit
            ),
        )
        .object(place.display()))
    }
}

#[derive(Debug)]
pub struct Budgets<'a> {
    dest: &'a Destination,
    /// Bytes that stay free on each file system.
    reserve: u64,
    by_device: BTreeMap<u64, (PathBuf, Budget)>,
}

impl<'a> Budgets<'a> {
    #[must_use]
    pub fn of(dest: &'a Destination, reserve: u64) -> Budgets<'a> {
        Budgets { dest, reserve, by_device: BTreeMap::new() }
    }

    #[must_use]
    pub fn dest(&self) -> &'a Destination {
        self.dest
    }

    /// Of the file system where the folder `path` is or will be.
    pub fn at(&mut self, path: &Path) -> Result<&mut Budget> {
        let folder = self.dest.nearest(path)?;
        let space = folder.space().map_err(|e| failed(&folder, OsStr::new("."), e))?;
        let new = || (folder.path().to_owned(), Budget::new(space));
        Ok(&mut self.by_device.entry(folder.dev()).or_insert_with(new).1)
    }

    pub(crate) fn reserve_for_undo(&mut self) {
        for (_, budget) in self.by_device.values_mut() {
            budget.reserve_for_undo(self.reserve);
        }
    }

    pub fn check(&self) -> Result<()> {
        for (place, budget) in self.by_device.values() {
            budget.check(place, self.reserve)?;
        }
        let root = self.dest.root();
        let Some((_, budget)) = self.by_device.get(&root.dev()) else { return Ok(()) };
        let read = |e| failed(root, OsStr::new("."), e);
        let Some(most) = root.top_entries().map_err(read)? else { return Ok(()) };
        // The volume label takes an entry.
        let used: u64 = 1 + root.names().map_err(read)?.iter().map(|n| entries_of(n)).sum::<u64>();
        let new = budget.new_entries(Path::new(""));
        if used + new <= most {
            return Ok(());
        }
        let place = root.path().display();
        let what = format!(
            "cannot copy the boot files to {place}: its top folder takes {most} entries, {used} are used, {new} are needed"
        );
        Err(Error::new(Code::BootPartitionFull, what).object(place))
    }
}

fn entries_of(name: &OsStr) -> u64 {
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
        // One after the other: only the largest file exists twice at a time.
        let both = |b: &mut Budget| {
            b.replace(5000, 5000);
            b.replace(9000, 9000);
        };
        assert_eq!(needed(both), 5 * 2048);
        // Freed space counts from then on, not before.
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
    fn what_files_freed_must_be_there_for_the_rollback() {
        let shrink = |b: &mut Budget| {
            b.replace(100 * 2048, 2048);
            b.take(90 * 2048);
        };
        assert_eq!(needed(shrink), 2048);
        let and_back = |b: &mut Budget| {
            shrink(b);
            b.reserve_for_undo(0);
        };
        assert_eq!(needed(and_back), 90 * 2048);
        let with_reserve = |b: &mut Budget| {
            shrink(b);
            b.reserve_for_undo(80 * 2048);
        };
        assert_eq!(needed(with_reserve), 10 * 2048);
    }

    #[test]
    fn names_need_space_too() {
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
