//! Changing a file sector by sector where it lies.
//!
//! A drive writes a sector of 512 bytes completely or not at all, and a file whose size stays keeps its clusters: no folder
//! entry and no table changes. What fits one sector therefore changes at once, without the moment a rename has on FAT.

use std::ffi::OsStr;
use std::fs::File;
use std::io;

use super::at;
use super::content::Content;
use super::folder::Folder;
use super::replace::{Outcome, Steps, remove_side_files};

/// The unit in which a drive writes, in bytes: 512 also on drives whose physical sectors are larger, since those change a part of
/// one by reading and writing all of it.
pub const SECTOR: usize = 512;

/// What changing in place needs besides [`Steps`].
#[allow(missing_docs, clippy::missing_errors_doc)] // each is one system call, and fails as that does
pub trait InPlace: Steps {
    /// Opens a regular file for synchronous writing, never making one.
    fn open_in_place(&self, name: &OsStr) -> io::Result<File>;
    /// Writes one sector, or what the file has of its last; its data is with the drive when this returns.
    fn write_sector(&self, file: &File, index: usize, sector: &[u8]) -> io::Result<()>;
}

impl InPlace for Folder {
    fn open_in_place(&self, name: &OsStr) -> io::Result<File> {
        // Its sectors follow; what belongs together fits one.
        #[cfg(test)]
        super::seen::change(&self.path().join(name));
        self.open_synchronous(name)
    }

    fn write_sector(&self, file: &File, index: usize, sector: &[u8]) -> io::Result<()> {
        let offset = u64::try_from(index.saturating_mul(SECTOR)).map_err(io::Error::other)?;
        std::os::unix::fs::FileExt::write_all_at(file, sector, offset)
    }
}

/// The sectors in which two contents of the same size differ.
#[must_use]
pub fn differing(old: &[u8], new: &[u8]) -> Vec<usize> {
    let pairs = old.chunks(SECTOR).zip(new.chunks(SECTOR)).enumerate();
    pairs.filter(|(_, (old, new))| old != new).map(|(index, _)| index).collect()
}

/// Makes the file `name`, which holds `old`, hold `new`: the sectors named by `order` are written one after the other, each on the
/// medium before the next. All of it is read back from the medium in the end.
///
/// The side files of `fatrw` are removed first, which would undo this.
///
/// # Errors
/// As the operating system says, with the step that failed. `InvalidInput`, and nothing was written: the sizes differ, or `order` is
/// not made of the sectors that differ. `InvalidData`: the file did not hold `old`, and
/// nothing was written; or the medium returned something else than was written.
pub fn change_in_place(
    steps: &impl InPlace,
    name: &OsStr,
    old: &[u8],
    new: &[u8],
    order: &[usize],
) -> io::Result<Outcome> {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if old.len() != new.len() || sorted != differing(old, new) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a change of these sectors"));
    }
    let stale = remove_side_files(steps, name)?;
    if !at(steps.holds(name, &Content::Bytes(old)), "compare", name)? {
        return Err(differs(name, "it is not what was read before"));
    }
    if order.is_empty() {
        // It may have been written by somebody who did not care whether it reaches the medium.
        at(steps.flush(), "flush the drive below", name)?;
        return Ok(if stale { Outcome::Written } else { Outcome::Unchanged });
    }
    let file = at(steps.open_in_place(name), "open", name)?;
    for index in order {
        let sector = new.chunks(SECTOR).nth(*index).unwrap_or_default();
        at(steps.write_sector(&file, *index, sector), "write a sector of", name)?;
        at(steps.flush(), "flush the drive below", name)?;
    }
    steps.close(file)?;
    if at(steps.holds(name, &Content::Bytes(new)), "read back", name)? {
        return Ok(Outcome::Written);
    }
    Err(differs(name, "what was read back is not what was written"))
}

fn differs(name: &OsStr, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", name.to_string_lossy()))
}
