//! What a file holds for its readers, where `fatrw` was interrupted.
//!
//! A side file of `fatrw` whose content fits its name is complete, and `fatrw` puts it over the file at its next read.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use md5::{Digest, Md5};

use super::at;
use super::content::Content;
use super::folder::{Folder, Kind, bytes};
use super::replace::{Steps, remove_side_files, replace_temporary};
use super::side::is_side_file_by;

/// Bytes of the largest file that is read as a whole: far more than any file of a bootloader's selection has.
const LARGEST: u64 = 1 << 20;

/// The content a reader must see: of the newest complete side file of `fatrw`, else of the file; `None` where there is neither.
///
/// # Errors
/// As the operating system says; `FileTooLarge` beyond a mebibyte.
pub fn current_content(folder: &Folder, name: &OsStr) -> io::Result<Option<Vec<u8>>> {
    if let Some((_, content)) = pending(folder, name)? {
        return Ok(Some(content));
    }
    match read(folder, name) {
        Ok((content, _)) => Ok(Some(content)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Puts the newest complete side file over the file, as `fatrw` does, and removes all of them: what
/// [`current_content`] says is what the file itself holds afterwards. Whether there was a complete one.
///
/// # Errors
/// As the operating system says, with the step that failed.
pub fn settle(folder: &Folder, name: &OsStr) -> io::Result<bool> {
    let Some((side, content)) = pending(folder, name)? else { return Ok(false) };
    tracing::info!("{} was not in place yet; it is now", folder.path().join(&side).display());
    let content = Content::Bytes(&content);
    if !at(folder.holds(name, &content), "compare", name)? {
        // The side file stays until the file is complete on the medium: it is what readers see.
        let old = at(folder.hold(name), "open", name)?;
        drop(replace_temporary(folder, name, &content)?);
        drop(old);
    }
    remove_side_files(folder, name)?;
    Ok(true)
}

/// The newest complete side file, and its content.
fn pending(folder: &Folder, name: &OsStr) -> io::Result<Option<(OsString, Vec<u8>)>> {
    let mut newest: Option<((i64, i64), OsString, Vec<u8>)> = None;
    for (side, kind) in at(folder.list(), "list the folder of", name)? {
        let own = is_side_file_by(&side, name, |a, b| folder.same_name(a, b));
        if !own || kind.is_some_and(|k| k != Kind::File) {
            continue;
        }
        let Some(digest) = digest_of(&side) else { continue };
        // One that cannot be read is not complete; whatever is wrong with the medium shows with the file itself.
        let Ok((content, changed)) = read(folder, &side) else { continue };
        let hex: String = Md5::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
        let fits = hex == digest;
        if fits && newest.as_ref().is_none_or(|(time, ..)| *time <= changed) {
            newest = Some((changed, side, content));
        }
    }
    Ok(newest.map(|(_, side, content)| (side, content)))
}

/// The digest in the name of a side file.
fn digest_of(side: &OsStr) -> Option<String> {
    let text = std::str::from_utf8(bytes(side)).ok()?.strip_suffix(".md5sum")?;
    let digest = text.rsplit('.').next()?;
    (digest.len() == 32).then(|| digest.to_ascii_lowercase())
}

/// Content and time of the last change.
fn read(folder: &Folder, name: &OsStr) -> io::Result<(Vec<u8>, (i64, i64))> {
    let file = at(folder.open_file(name), "open", name)?;
    let meta = at(file.metadata(), "look at", name)?;
    let mut content = Vec::new();
    at(file.take(LARGEST + 1).read_to_end(&mut content), "read", name)?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > LARGEST {
        return at(Err(io::ErrorKind::FileTooLarge.into()), "read", name);
    }
    Ok((content, (meta.mtime(), meta.mtime_nsec())))
}
