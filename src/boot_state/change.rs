//! A change of the boot state as a list of steps (pure data), and the one function that executes it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};

use crate::sys::file::{self, Content, FileKind, Folder};

/// Each step is on the medium, and read back, before the next begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Check that [`Replace`](Step::Replace) would work, and change nothing: before a step removes what a failure would need.
    Rehearse(OsString, Vec<u8>),
    /// Write a new file and rename it. Without space for a new file, and where only one sector differs, write that sector in place.
    Replace(OsString, Vec<u8>),
    /// Write these sectors in place, in this order.
    Sectors {
        name: OsString,
        old: Vec<u8>,
        new: Vec<u8>,
        /// Numbers of 512-byte sectors that differ.
        order: Vec<usize>,
    },
    /// Remove each file whose name contains this, ignoring case, with its side files.
    RemoveAll(&'static str),
}

pub(super) fn carry_out(folder: &Folder, steps: &[Step]) -> io::Result<()> {
    for step in steps {
        match step {
            Step::Rehearse(name, new) => rehearse(folder, name, new)?,
            Step::Replace(name, new) => replace(folder, name, new)?,
            Step::Sectors { name, old, new, order } => {
                file::change_in_place(folder, name, old, new, order)?;
            }
            Step::RemoveAll(part) => remove_all(folder, part)?,
        }
    }
    Ok(())
}

fn rehearse(folder: &Folder, name: &OsStr, new: &[u8]) -> io::Result<()> {
    let content = Content::Bytes(new);
    if folder.holds(name, &content)? {
        return Ok(());
    }
    match file::rehearse(folder, &content) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull && one_sector(folder, name, new).is_some() => Ok(()),
        result => result,
    }
}

fn replace(folder: &Folder, name: &OsStr, new: &[u8]) -> io::Result<()> {
    match file::replace(folder, name, &Content::Bytes(new)) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull => {
            let Some(old) = one_sector(folder, name, new) else { return Err(e) };
            tracing::warn!("{e}; changing {} in place", name.to_string_lossy());
            file::change_in_place(folder, name, &old, new, &file::differing(&old, new)).map(drop)
        }
        result => result.map(drop),
    }
}

/// The old content, where one sector is all that differs: a drive writes a sector as a whole.
fn one_sector(folder: &Folder, name: &OsStr, new: &[u8]) -> Option<Vec<u8>> {
    let mut old = Vec::new();
    let most = u64::try_from(new.len()).ok()?.saturating_add(1);
    folder.hold(name).ok()??.take(most).read_to_end(&mut old).ok()?;
    (old.len() == new.len() && file::differing(&old, new).len() <= 1).then_some(old)
}

/// A damaged FAT may list one name several times: each removal takes one entry.
fn remove_all(folder: &Folder, part: &str) -> io::Result<()> {
    let mut others = Vec::new();
    for _ in 0..MAX_MATCHES {
        let names = folder.names()?;
        let Some(name) = names.iter().find(|name| has(name, part) && !others.contains(*name)) else {
            return Ok(());
        };
        match file::remove(folder, name) {
            Ok(_) => {}
            // A folder. No bootloader reads a count from it.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => others.push(name.clone()),
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other(format!("more than {MAX_MATCHES} files named *{part}*")))
}

/// U-Boot is known to leave a few.
const MAX_MATCHES: usize = 64;

pub(super) fn has(name: &OsStr, part: &str) -> bool {
    name.to_string_lossy().to_lowercase().contains(part)
}

/// Removes temporary files of an earlier change, and completes what `fatrw` left.
pub(super) fn prepare(folder: &Folder, name: &OsStr) -> io::Result<()> {
    file::sweep(folder)?;
    file::commit_side_files(folder, name)?;
    Ok(())
}

/// The name as the folder has it: on FAT the case may differ.
pub(super) fn find(folder: &Folder, name: &str) -> io::Result<Option<OsString>> {
    let mut names = folder.list()?.into_iter().filter(|(_, kind)| kind.is_none_or(|k| k == FileKind::File));
    Ok(names.find(|(n, _)| folder.same_name(n, name.as_ref())).map(|(n, _)| n))
}
