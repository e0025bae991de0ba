//! Writing over a file where it lies, for an undo that must go through although there is no room for a second copy.

use std::ffi::OsStr;
use std::fs::File;
use std::io;

use super::at;
use super::content::{Content, STEP, fill};
use super::folder::Folder;
use super::replace::{Outcome, Steps, remove_side_files};

/// What [`overwrite`] needs of a folder besides.
#[allow(missing_docs, clippy::missing_errors_doc)] // each is one system call, and fails as that does
pub trait Overwrite: Steps {
    /// Opens a regular file that is there, for reading and writing.
    fn open_to_write(&self, name: &OsStr) -> io::Result<File>;
    fn put(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes a file `size` bytes long, which is no longer than it was.
    fn cut(&self, file: &File, size: u64) -> io::Result<()>;
}

/// Makes the existing file `name` hold `content` by writing over it, front to back. Needs room only for what the file grows by.
/// Returns when the new content is on the medium and has been read back from there.
///
/// Where there is room, [`replace`](super::replace) is the right thing: here a cut leaves a file that is neither old nor new. Which
/// one, in the order of the steps, each of which is on the medium before the next begins:
///
/// 1. What is longer than the old file is written behind its end. A cut leaves the old content, perhaps with a part of the new
///    end behind it, or with what was in those clusters before: entry and data go to the drive together. No room for it: the file
///    gets its old size back, nothing is lost, and the error is `StorageFull`.
/// 2. What is there is written over in pieces of 256 KiB, from the beginning; pieces that are right already are left alone. A cut
///    leaves new pieces, then one in which any sector is old or new, then old ones. So running it again, with the same content,
///    ends what was begun, and writes only what is missing; a file of a single piece (a configuration, a device tree) mixes
///    least.
/// 3. What is longer than the new content is cut off. A cut leaves the new content, perhaps with an old end behind it, or with an
///    entry that still says the old size.
///
/// # Errors
/// As the operating system says, with the step that failed; `NotFound` where there is no such file; `StorageFull` before anything
/// has changed; `InvalidData` when the medium returned something else than what was written.
pub fn overwrite(folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
    overwrite_by(folder, name, content)
}

/// [`overwrite`] by other means.
///
/// # Errors
/// As for [`overwrite`].
pub fn overwrite_by(steps: &impl Overwrite, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
    let file = at(steps.open_to_write(name), "open", name)?;
    let stale = remove_side_files(steps, name)?;
    if at(steps.holds(name, content), "compare", name)? {
        at(steps.sync_folder(), "sync the folder of", name)?;
        at(steps.flush(), "flush the drive below", name)?;
        return Ok(if stale { Outcome::Written } else { Outcome::Unchanged });
    }
    let (old, new) = (file.metadata()?.len(), content.size()?);
    if new > old {
        extend(steps, name, &file, content, old)?;
    }
    rewrite(steps, name, &file, content, old.min(new))?;
    if new < old {
        at(steps.cut(&file, new), "cut off the end of", name)?;
        settle(steps, name, &file)?;
    }
    if at(steps.holds(name, content), "read back", name)? {
        return Ok(Outcome::Written);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}: what was read back is not what was written", name.to_string_lossy()),
    ))
}

/// Writes what lies behind `old`. On failure the file has its old size again.
fn extend(
    steps: &impl Overwrite,
    name: &OsStr,
    file: &File,
    content: &Content<'_>,
    old: u64,
) -> io::Result<()> {
    let append = || -> io::Result<()> {
        // What an earlier run allocated behind the end before the power failed: FAT refuses to grow a chain that is longer than
        // its file, and makes the whole file system read-only (Linux, `fat_chain_add`). To its own size, the rest is let go.
        steps.cut(file, old)?;
        let (mut buf, mut offset) = (vec![0; STEP], old);
        loop {
            let n = content.fill(&mut buf, offset)?;
            let Some(part) = buf.get(..n).filter(|p| !p.is_empty()) else { break };
            steps.put(file, part, offset)?;
            offset += u64::try_from(n).unwrap_or(u64::MAX);
        }
        // The table before the entry with the new size, as for a file that is made.
        steps.flush()?;
        settle(steps, name, file)
    };
    append().map_err(|e| {
        if let Err(also) = steps.cut(file, old).and_then(|()| settle(steps, name, file)) {
            tracing::warn!("{} has kept a part of a new end: {also}", name.to_string_lossy());
        }
        io::Error::new(e.kind(), format!("extend {}: {e}", name.to_string_lossy()))
    })
}

/// Writes the first `end` bytes where they differ, piece by piece.
fn rewrite(
    steps: &impl Overwrite,
    name: &OsStr,
    file: &File,
    content: &Content<'_>,
    end: u64,
) -> io::Result<()> {
    let (mut wanted, mut there, mut offset) = (vec![0; STEP], vec![0; STEP], 0);
    while offset < end {
        let len = usize::try_from(end - offset).unwrap_or(STEP).min(STEP);
        let (Some(wanted), Some(there)) = (wanted.get_mut(..len), there.get_mut(..len)) else { break };
        let n = content.fill(wanted, offset)?;
        let m = at(fill(file, there, offset), "read", name)?;
        if (n, m) != (len, len) {
            return Err(io::Error::other(format!(
                "{}: it or its new content has become shorter meanwhile",
                name.to_string_lossy()
            )));
        }
        if wanted != there {
            at(steps.put(file, wanted, offset), "write", name)?;
            settle(steps, name, file)?;
        }
        offset += u64::try_from(len).unwrap_or(u64::MAX);
    }
    Ok(())
}

/// Brings a file, its entry and the table to the medium.
fn settle(steps: &impl Overwrite, name: &OsStr, file: &File) -> io::Result<()> {
    at(steps.sync(file), "sync", name)?;
    at(steps.sync_folder(), "sync the folder of", name)?;
    at(steps.flush(), "flush the drive below", name)
}
