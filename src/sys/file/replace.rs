//! The write sequences.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::at;
use super::content::Content;
use super::folder::{FileKind, Folder};
use super::listing::Listing;
use super::shared_clusters::separate_side;
use super::side::owners;
use super::temporary::{create_unique, fill, is_temporary, replace_temporary_listed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Unchanged,
    Written,
}

/// Makes the file `name` in `folder` have `content`. At every instant, on the medium too, the name leads to the complete old or
/// the complete new content (or to nothing, if there was nothing). Returns when the new content is on the medium and was read
/// back from there.
///
/// The new file allows no more than the old one did, unless `content` says so.
///
/// First removes the side files of `fatrw`, complete or not: they would replace the new content. So content that is derived from
/// the old one must be derived from [`open_current`](super::open_current).
pub fn replace(folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
    replace_listed(folder, &Listing::of(folder)?, name, content)
}

/// [`replace`] in a folder that was listed for several files.
pub fn replace_listed(
    folder: &Folder,
    listing: &Listing,
    name: &OsStr,
    content: &Content<'_>,
) -> io::Result<Outcome> {
    let stale = listing.has_side_file(folder, name) && remove_side_files(folder, name)?;
    let outcome = replace_only(folder, listing, name, content)?;
    Ok(if stale { Outcome::Written } else { outcome })
}

/// [`replace`] without a change to side files.
pub(super) fn replace_only(
    folder: &Folder,
    listing: &Listing,
    name: &OsStr,
    content: &Content<'_>,
) -> io::Result<Outcome> {
    if at(folder.holds(name, content), "compare", name)? {
        // Another program may have written it without a flush.
        at(folder.sync_folder(), "sync the folder of", name)?;
        at(folder.flush(), "flush the drive below", name)?;
        return Ok(Outcome::Unchanged);
    }
    let old = at(folder.hold(name), "open", name)?;
    let mode = mode(old.as_ref(), content)?;
    // Held to the very end: if freed earlier, a cut could leave the old entry with clusters that the table has as free.
    let old = folder.keep_open(old)?;
    let new = replace_temporary_listed(folder, listing, name, content, mode)?;
    folder.close(new)?;
    let Some(old) = old else { return Ok(Outcome::Written) };
    folder.close(old)?;
    // Flushes the freed clusters: not necessary for safety, but nothing stays open.
    at(folder.flush(), "flush the drive below", name)?;
    Ok(Outcome::Written)
}

fn mode(old: Option<&File>, content: &Content<'_>) -> io::Result<u32> {
    Ok(match (old, content) {
        // The caller decides.
        (None, _) | (_, Content::BytesAs(..)) => content.mode()?,
        (Some(old), _) => content.mode()? & old.metadata()?.mode(),
    })
}

/// [`replace`] of files of one folder that are of use only together, such as a file and its signature: all of them are old or all of them are
/// new, at every instant. On a FAT that holds if their entries are in one sector of the folder, which is changed by one write, and if the file
/// system is not mounted with `sync` or `dirsync`; otherwise a power cut between two writes, a moment apart, leaves some of them new.
pub fn replace_together(folder: &Folder, files: &[(&OsStr, Content<'_>)]) -> io::Result<Outcome> {
    let listing = Listing::of(folder)?;
    let mut differing = Vec::new();
    for (name, content) in files {
        if !at(folder.holds(name, content), "compare", name)? {
            differing.push((*name, content));
        }
    }
    if differing.len() < 2 || files.iter().any(|(name, _)| listing.has_side_file(folder, name)) {
        // A side file is removed before its file is replaced, so the files cannot change at one instant.
        let mut outcome = Outcome::Unchanged;
        for (name, content) in files {
            if replace_listed(folder, &listing, name, content)? == Outcome::Written {
                outcome = Outcome::Written;
            }
        }
        return Ok(outcome);
    }
    let mut ready = Vec::new();
    for (name, content) in differing {
        if let Err(e) = prepare(folder, &listing, name, content, &mut ready) {
            for Ready { temporary, .. } in &ready {
                if let Err(also) = folder.unlink(temporary).and_then(|()| folder.sync_folder()) {
                    tracing::warn!("cannot remove {}: {also}", temporary.display());
                }
            }
            return Err(e);
        }
    }
    let renames: Vec<(&OsStr, &OsStr)> = ready.iter().map(|r| (r.temporary.as_os_str(), r.name)).collect();
    folder.rename_together(&renames)?;
    folder.flush()?;
    for Ready { new, old, .. } in ready {
        folder.close(new)?;
        old.map_or(Ok(()), |old| folder.close(old))?;
    }
    folder.flush()?;
    Ok(Outcome::Written)
}

/// A temporary file that is on the medium.
struct Ready<'a> {
    temporary: OsString,
    name: &'a OsStr,
    new: File,
    /// Held to the very end, as in [`replace_only`].
    old: Option<File>,
}

fn prepare<'a>(
    folder: &Folder,
    listing: &Listing,
    name: &'a OsStr,
    content: &Content<'_>,
    ready: &mut Vec<Ready<'a>>,
) -> io::Result<()> {
    let old = at(folder.hold(name), "open", name)?;
    let mode = mode(old.as_ref(), content)?;
    let old = folder.keep_open(old)?;
    let (temporary, new) = create_unique(folder, listing, |t| folder.create(t, mode))?;
    let filled = fill(folder, &temporary, &new, content);
    ready.push(Ready { temporary, name, new, old });
    filled
}

/// Whether [`replace`] would find space for `content` on a working medium: writes, reads back and removes a temporary file.
pub(crate) fn rehearse(folder: &Folder, content: &Content<'_>) -> io::Result<()> {
    let (temporary, new) =
        create_unique(folder, &Listing::of(folder)?, |t| folder.create(t, content.mode()?))?;
    let filled = fill(folder, &temporary, &new, content);
    filled.and(unlink_open(folder, &temporary, Some(new)))
}

/// Removes the side files of `fatrw`, which it would put over the file at its next read. Returns whether there were any.
pub(super) fn remove_side_files(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    let stale = side_files(folder, name)?;
    for side in &stale {
        drop_side_file(folder, side)?;
    }
    Ok(!stale.is_empty())
}

pub(super) fn side_files(folder: &Folder, name: &OsStr) -> io::Result<Vec<OsString>> {
    let all = at(folder.names(), "list the folder of", name)?;
    Ok(all.into_iter().filter(|n| owners(n).any(|owner| folder.same_name(owner, name))).collect())
}

/// Removes a side file. `fatrw` renames one over its file; half a rename leaves two names for the same clusters, and unlinking
/// one would free clusters of the other.
pub(super) fn drop_side_file(folder: &Folder, side: &OsStr) -> io::Result<()> {
    match at(folder.twin(side), "find the clusters of", side)? {
        Some(twin) => at(separate_side(folder, side, &twin), "clean up", side),
        None => unlink(folder, side),
    }
}

fn unlink(folder: &Folder, name: &OsStr) -> io::Result<()> {
    let file = at(folder.hold(name), "open", name)?;
    unlink_open(folder, name, file)
}

/// Removes the name of an open file. On a FAT its clusters are freed only after the entry has gone from the medium; an ext4 has no file without a
/// name at any moment.
pub(super) fn unlink_open(folder: &Folder, name: &OsStr, file: Option<File>) -> io::Result<()> {
    let held = folder.keep_open(file)?;
    at(folder.unlink(name), "remove", name)?;
    finish_removal(folder, name, held)
}

fn finish_removal(folder: &Folder, name: &OsStr, held: Option<File>) -> io::Result<()> {
    at(folder.sync_folder(), "sync the folder of", name)?;
    at(folder.flush(), "flush the drive below", name)?;
    match held {
        Some(file) => {
            folder.close(file)?;
            at(folder.flush(), "flush the drive below", name)
        }
        None => Ok(()),
    }
}

/// Removes a regular file with its side files; returns whether it existed. On the medium the file is complete or gone.
pub fn remove(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    remove_side_files(folder, name)?;
    match unlink(folder, name) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Removes what has the name of a file and is none: a folder with its content, a link, a pipe, a socket, a device. Returns whether there
/// was such a thing.
pub fn remove_irregular(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    match at(folder.entry(name), "look for", name)?.map(|e| e.kind) {
        None | Some(FileKind::File) => return Ok(false),
        Some(FileKind::Folder) => at(std::fs::remove_dir_all(folder.path().join(name)), "remove", name)?,
        Some(FileKind::Link | FileKind::Other) => at(folder.unlink(name), "remove", name)?,
    }
    at(folder.sync_folder(), "sync the folder of", name)?;
    at(folder.flush(), "flush the drive below", name)?;
    Ok(true)
}

/// Removes an empty folder. Refuses with `ResourceBusy` if a power cut has left a temporary folder beside it: after half the rename of
/// [`make_folder`] both names lead to the same cluster. The removal would free that cluster, and the next file that is written there
/// would share it with the temporary folder, so that a repair (`fsck.fat -a`) could cut the file off. No system call shows the
/// clusters of a folder on FAT.
pub fn remove_folder(folder: &Folder, name: &OsStr) -> io::Result<()> {
    for other in at(folder.names(), "list the folder of", name)?.iter().filter(|n| is_temporary(n)) {
        match folder.hold_folder(other) {
            // A file, or removed meanwhile.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound) => {}
            Err(e) => return at(Err(e), "open", other),
            Ok(_) => {
                let text = format!("{} is beside it, and may have the same cluster", other.to_string_lossy());
                return at(Err(io::Error::new(io::ErrorKind::ResourceBusy, text)), "remove", name);
            }
        }
    }
    let held = folder.keep_open(Some(at(folder.hold_folder(name), "open", name)?))?;
    at(folder.unlink_folder(name), "remove", name)?;
    finish_removal(folder, name, held)
}

/// Also creates missing parents. Each folder gets its name when it is on the medium.
pub(crate) fn make_folders(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    make_folders(parent)?;
    make_folder(&Folder::open(parent)?, name)
}

/// Creates a folder. It gets its name only after it is on the medium, empty: otherwise a cut could leave an entry that leads to a
/// cluster with other content.
pub fn make_folder(folder: &Folder, name: &OsStr) -> io::Result<()> {
    let (temporary, made) = create_unique(folder, &Listing::of(folder)?, |t| folder.make(t))?;
    at(folder.sync(&made), "sync", &temporary)?;
    at(folder.sync_folder(), "sync the folder of", &temporary)?;
    at(folder.flush(), "flush the drive below", &temporary)?;
    at(folder.rename(&temporary, name), "rename to", name)?;
    at(folder.sync(&made), "sync", name)?;
    at(folder.sync_folder(), "sync the folder of", name)?;
    at(folder.flush(), "flush the drive below", name)
}
