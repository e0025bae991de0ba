//! Changes a file sector by sector in place.
//!
//! A drive writes a sector of 512 bytes completely or not at all, and a file whose size stays keeps its clusters: no folder entry
//! and no table changes. So a change within one sector is atomic, unlike a rename on FAT.

use std::ffi::OsStr;
use std::io;

use super::content::Content;
use super::folder::Folder;
use super::replace::{Outcome, remove_side_files};
use super::{SECTOR, at};

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
    folder: &Folder,
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
    let stale = remove_side_files(folder, name)?;
    if !at(folder.holds(name, &Content::Bytes(old)), "compare", name)? {
        return Err(differs(name, "it is not what was read before"));
    }
    if order.is_empty() {
        // Another program may have written it without a flush.
        at(folder.flush(), "flush the drive below", name)?;
        return Ok(if stale { Outcome::Written } else { Outcome::Unchanged });
    }
    let file = at(folder.open_in_place(name), "open", name)?;
    for index in order {
        let sector = new.chunks(SECTOR).nth(*index).ok_or_else(|| differs(name, "it has no such sector"))?;
        at(folder.write_sector(&file, *index, sector), "write a sector of", name)?;
        at(folder.flush(), "flush the drive below", name)?;
    }
    folder.close(file)?;
    if at(folder.holds(name, &Content::Bytes(new)), "read back", name)? {
        return Ok(Outcome::Written);
    }
    Err(differs(name, "what was read back is not what was written"))
}

fn differs(name: &OsStr, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", name.to_string_lossy()))
}
