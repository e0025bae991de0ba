//! Side files of `fatrw`: complete content that a reader must see, or the rest of an interrupted write.
//!
//! A side file exists from before the target is changed until after it was renamed, and only `fatrw` creates one. Any other
//! program that writes the target removes it first ([`replace`](super::replace), [`remove`](super::remove),
//! [`overwrite`](super::overwrite)). So a complete one is always newer than the target. Time stamps, which a device without a
//! clock cannot make, only decide between several of them.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::time::SystemTime;

use md5::{Digest as _, Md5};

use super::at;
use super::content::{Content, STEP, fill};
use super::folder::Folder;
use super::listing::Listing;
use super::replace::{Outcome, drop_side_file, replace_only, side_files};
use super::shared_clusters::separate_side;
use super::side::digest_of_name;
use super::sweep::sweep;

/// No file that is read as a whole is larger, in bytes.
const MAX_SIDE_BYTES: u64 = 1 << 20;

/// Opens the content that a reader of `name` must see: a complete side file of `fatrw`, which replaces the file, or else the
/// file. A program that changes a boot file instead of replacing it must start with this.
///
/// If the side file cannot replace the file (no free space, a read-only file system), the side file is opened, and stays.
pub fn open_current(folder: &Folder, name: &OsStr) -> io::Result<File> {
    if let Err(e) = sweep_for(folder, name) {
        tracing::warn!("{} is read as it is: {e}", folder.path().join(name).display());
        let newest = newest_complete(folder, &side_files(folder, name)?)?;
        return newest.map_or_else(|| folder.open_file(name), |(_, file)| Ok(file));
    }
    let sides = side_files(folder, name)?;
    let mut newest = newest_complete(folder, &sides)?;
    if let Err(e) = commit(folder, name, &sides, &mut newest) {
        let shown = name.to_string_lossy();
        match newest {
            Some((side, file)) => {
                let side = side.to_string_lossy();
                tracing::warn!("{side} is read for {shown}, and cannot be put over it: {e}");
                return Ok(file);
            }
            None => tracing::warn!("cannot clean up beside {shown}: {e}"),
        }
    }
    at(folder.hold(name), "open", name)?.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("{}: there is no such file", name.to_string_lossy()))
    })
}

/// The content that a reader of `name` must see; `None` where there is none. Changes nothing.
pub(crate) fn current_content(folder: &Folder, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
    let newest = newest_complete(folder, &side_files(folder, name)?)?;
    let Some(file) = newest.map_or_else(|| folder.hold(name), |(_, file)| Ok(Some(file)))? else {
        return Ok(None);
    };
    if file.metadata()?.len() > MAX_SIDE_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut content = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
    let n = fill(&file, &mut content, 0)?;
    content.truncate(n);
    Ok(Some(content))
}

fn sweep_for(folder: &Folder, name: &OsStr) -> io::Result<()> {
    if side_files(folder, name)?.is_empty() { Ok(()) } else { sweep(folder).map(drop) }
}

/// Puts a complete side file of `fatrw` over its file, as [`replace`](super::replace) does, and removes it; of several, the one
/// that was written last. Removes incomplete ones. [`Outcome::Written`] if the content of the file has changed.
///
/// At every instant the file is complete, and a reader that knows side files sees the new content.
pub fn commit_side_files(folder: &Folder, name: &OsStr) -> io::Result<Outcome> {
    sweep_for(folder, name)?;
    let sides = side_files(folder, name)?;
    let mut newest = newest_complete(folder, &sides)?;
    commit(folder, name, &sides, &mut newest)
}

/// `newest` is closed before its name goes.
fn commit(
    folder: &Folder,
    name: &OsStr,
    sides: &[OsString],
    newest: &mut Option<(OsString, File)>,
) -> io::Result<Outcome> {
    // The others first: a power cut must not leave only an older one.
    for other in sides.iter().filter(|s| newest.as_ref().is_none_or(|(side, _)| side != *s)) {
        drop_side_file(folder, other)?;
    }
    let Some((side, file)) = newest else { return Ok(Outcome::Unchanged) };
    tracing::info!("{}: putting {} over it", name.to_string_lossy(), side.to_string_lossy());
    match at(folder.twin(side), "find the clusters of", side)? {
        // Power failed during its rename, half of which has happened.
        Some(twin) if folder.same_name(&twin, name) => {
            at(separate_side(folder, side, &twin), "clean up", side)?;
            Ok(Outcome::Written)
        }
        Some(twin) => Err(io::Error::other(format!(
            "{} shares its clusters with {}",
            side.to_string_lossy(),
            twin.to_string_lossy()
        ))),
        None => {
            let outcome = replace_only(folder, &Listing::of(folder)?, name, &Content::File(file))?;
            if let Some((side, file)) = newest.take() {
                folder.close(file)?;
                drop_side_file(folder, &side)?;
            }
            Ok(outcome)
        }
    }
}

/// Renames a complete side file over its file, of several the one that was written last: a commit without space for a second
/// copy. `false` where there is none.
///
/// At every instant the file is complete. A power cut may leave a side file that shares its clusters with the file: copal
/// recognises that, the original `fatrw` does not.
pub fn rename_side_file(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    sweep_for(folder, name)?;
    let sides = side_files(folder, name)?;
    let Some((side, file)) = newest_complete(folder, &sides)? else { return Ok(false) };
    if at(folder.twin(&side), "find the clusters of", &side)?.is_some() {
        return Err(io::Error::other(format!("{} shares its clusters", side.to_string_lossy())));
    }
    for other in sides.iter().filter(|s| **s != side) {
        drop_side_file(folder, other)?;
    }
    // The program that wrote it may have ended before it was on the medium.
    at(folder.sync(&file), "sync", &side)?;
    at(folder.sync_folder(), "sync the folder of", &side)?;
    at(folder.flush(), "flush the drive below", &side)?;
    let old = folder.keep_open(at(folder.hold(name), "open", name)?)?;
    at(folder.rename(&side, name), "rename over", name)?;
    at(folder.sync(&file), "sync", name)?;
    at(folder.sync_folder(), "sync the folder of", name)?;
    at(folder.flush(), "flush the drive below", name)?;
    if let Some(old) = old {
        folder.close(old)?;
        at(folder.flush(), "flush the drive below", name)?;
    }
    Ok(true)
}

/// The open side file whose content fits its name; of several, the last written.
fn newest_complete(folder: &Folder, sides: &[OsString]) -> io::Result<Option<(OsString, File)>> {
    let mut newest: Option<(SystemTime, &OsString, File)> = None;
    for side in sides {
        let Some(expected) = digest_of_name(side) else { continue };
        let Some(file) = at(folder.hold(side), "open", side)? else { continue };
        if at(digest(&file), "read", side)? != expected {
            tracing::debug!("{} is not complete", side.to_string_lossy());
            continue;
        }
        let time = file.metadata()?.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if newest.as_ref().is_none_or(|(other, ..)| time > *other) {
            newest = Some((time, side, file));
        }
    }
    Ok(newest.map(|(_, side, file)| (side.clone(), file)))
}

fn digest(file: &File) -> io::Result<String> {
    let (mut md5, mut buf, mut offset) = (Md5::new(), vec![0; STEP], 0);
    loop {
        let n = fill(file, &mut buf, offset)?;
        let Some(part) = buf.get(..n).filter(|p| !p.is_empty()) else { break };
        md5.update(part);
        offset += u64::try_from(n).unwrap_or(u64::MAX);
    }
    Ok(md5.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
