//! Overwrites a file in place, for an undo that must succeed without space for a second copy.

use std::ffi::OsStr;
use std::fs::File;
use std::io;

use super::SECTOR;
use super::at;
use super::content::{Content, STEP};
use super::folder::{Folder, fill_direct};
use super::replace::{Outcome, remove_side_files};
use crate::sys::buffer::Buffer;

/// Makes the existing file `name` have `content` by overwriting it from start to end. Needs space only for its growth. Returns
/// when the new content is on the medium and was read back from there.
///
/// Where there is space for a copy, use [`replace`](super::replace): here a power cut leaves a file that is neither old nor new.
/// The steps in order, each on the medium before the next:
///
/// 1. The part past the end of the old file is appended. A cut leaves the old content, perhaps followed by a part of the new end,
///    or by old bytes of those clusters: entry and data go to the drive together. Without space, the file gets its old size
///    back, nothing is lost, and the error is `StorageFull`.
/// 2. The existing part is overwritten in pieces of 256 KiB, from the start; equal pieces are skipped. A cut leaves new pieces,
///    then one in which each sector is old or new, then old ones. A repeated run with the same content completes it, and
///    writes only what is missing. A file of a single piece (a configuration, a device tree) mixes least.
/// 3. The part past the end of the new content is cut off. A cut leaves the new content, perhaps with an old end, or with an
///    entry that still has the old size.
pub fn overwrite(folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
    let file = at(folder.open_to_write(name), "open", name)?;
    let stale = remove_side_files(folder, name)?;
    if at(folder.holds(name, content), "compare", name)? {
        at(folder.sync_folder(), "sync the folder of", name)?;
        at(folder.flush(), "flush the drive below", name)?;
        return Ok(if stale { Outcome::Written } else { Outcome::Unchanged });
    }
    let (old, new) = (file.metadata()?.len(), content.size()?);
    if new > old {
        extend(folder, name, &file, content, old)?;
    }
    rewrite(folder, name, &file, content, old.min(new))?;
    if new < old {
        at(folder.cut(&file, new), "cut off the end of", name)?;
        settle(folder, name, &file)?;
    }
    if at(folder.holds(name, content), "read back", name)? {
        return Ok(Outcome::Written);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}: what was read back is not what was written", name.to_string_lossy()),
    ))
}

/// Writes the part past the end of `old`. On failure the file has its old size again.
fn extend(folder: &Folder, name: &OsStr, file: &File, content: &Content<'_>, old: u64) -> io::Result<()> {
    let append = || -> io::Result<()> {
        // An interrupted run may have allocated clusters past the end: FAT refuses to grow a chain that is longer than its file, and
        // makes the whole file system read-only (Linux, `fat_chain_add`). Cutting to the file's size frees them.
        folder.cut(file, old)?;
        let (mut buf, mut offset) = (vec![0; STEP], old);
        loop {
            let n = content.fill(&mut buf, offset)?;
            let Some(part) = buf.get(..n).filter(|p| !p.is_empty()) else { break };
            folder.put(file, part, offset)?;
            offset += u64::try_from(n).unwrap_or(u64::MAX);
        }
        // The table before the entry with the new size, as for a new file.
        folder.flush()?;
        settle(folder, name, file)
    };
    append().map_err(|e| {
        if let Err(also) = folder.cut(file, old).and_then(|()| settle(folder, name, file)) {
            tracing::warn!("{} has kept a part of a new end: {also}", name.to_string_lossy());
        }
        io::Error::new(e.kind(), format!("extend {}: {e}", name.to_string_lossy()))
    })
}

fn rewrite(folder: &Folder, name: &OsStr, file: &File, content: &Content<'_>, end: u64) -> io::Result<()> {
    // Never past the sector in which the new content ends: after a cut in step 3 the file may have fewer clusters than its size needs, and
    // Linux makes the whole file system read-only when it is to read past the last one (`fat_bmap_cluster`).
    let reader = at(folder.open_past_cache(name), "open", name)?;
    let (mut expected, mut there, mut offset) = (vec![0; STEP], Buffer::zeroed(STEP), 0);
    while offset < end {
        let len = usize::try_from(end - offset).unwrap_or(STEP).min(STEP);
        let (Some(expected), Some(sectors)) =
            (expected.get_mut(..len), there.get_mut(..len.next_multiple_of(SECTOR)))
        else {
            break;
        };
        let n = content.fill(expected, offset)?;
        let m = at(fill_direct(&reader, sectors, offset), "read", name)?;
        let Some(there) = sectors.get(..len.min(m)) else { break };
        if (n, there.len()) != (len, len) {
            return Err(io::Error::other(format!(
                "{}: it or its new content has become shorter meanwhile",
                name.to_string_lossy()
            )));
        }
        if expected != there {
            at(folder.put(file, expected, offset), "write", name)?;
            settle(folder, name, file)?;
        }
        offset += u64::try_from(len).unwrap_or(u64::MAX);
    }
    Ok(())
}

fn settle(folder: &Folder, name: &OsStr, file: &File) -> io::Result<()> {
    at(folder.sync(file), "sync", name)?;
    at(folder.sync_folder(), "sync the folder of", name)?;
    at(folder.flush(), "flush the drive below", name)
}
