//! Changes a file sector by sector in place.
//!
//! A drive writes a sector of 512 bytes completely or not at all, and a file whose size stays keeps its clusters: no folder entry
//! and no table changes. So a change within one sector is atomic, unlike a rename on FAT.

use std::ffi::OsStr;
use std::fs::File;
use std::io;

use super::at;
use super::content::Content;
use super::folder::Folder;
use super::replace::{Outcome, Steps, remove_side_files};

/// The unit in which a drive writes, in bytes: 512 also on drives with larger physical sectors, which change a part of one by
/// reading and writing all of it.
pub(crate) const SECTOR: usize = 512;

pub trait InPlace: Steps {
    fn open_in_place(&self, name: &OsStr) -> io::Result<File>;
    /// Writes one sector, or the file's part of the last one; the drive has the data when this returns.
    fn write_sector(&self, file: &File, index: usize, sector: &[u8]) -> io::Result<()>;
}

impl InPlace for Folder {
    fn open_in_place(&self, name: &OsStr) -> io::Result<File> {
        // Events of single sectors follow; related bytes fit one sector.
        #[cfg(test)]
        super::seen::change(&self.path().join(name));
        self.open_synchronous(name)
    }

    fn write_sector(&self, file: &File, index: usize, sector: &[u8]) -> io::Result<()> {
        let offset = u64::try_from(index.saturating_mul(SECTOR)).map_err(io::Error::other)?;
        std::os::unix::fs::FileExt::write_all_at(file, sector, offset)
    }
}

#[must_use]
pub fn differing(old: &[u8], new: &[u8]) -> Vec<usize> {
    let pairs = old.chunks(SECTOR).zip(new.chunks(SECTOR)).enumerate();
    pairs.filter(|(_, (old, new))| old != new).map(|(index, _)| index).collect()
}

/// Changes the file `name` from `old` to `new`: writes the sectors of `order` one after the other, each on the medium before the
/// next. Reads all of it back from the medium at the end.
///
/// First removes the side files of `fatrw`, which would undo this.
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
        // Another program may have written it without a flush.
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
