//! A change of the boot state as a list of steps, and the one place that carries them out.
//!
//! Whatever decides what to write is pure; whatever writes goes through [`InPlace`], which a test can stop at each call.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read as _};
use std::path::PathBuf;

use crate::sys::file::{self, Content, FileKind, Folder, InPlace};

/// What is to be done in one folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The folder.
    pub folder: PathBuf,
    /// In order.
    pub steps: Vec<Step>,
}

/// One step. Each is on the medium, and read back, before the next begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Find out whether the file could be made to hold this, and change nothing: before something goes that is needed should it fail.
    Rehearse(OsString, Vec<u8>),
    /// Make the file hold this, by a new file that takes its name. Where there is no room for one, and no more than one sector differs,
    /// by writing that sector where it lies.
    Replace(OsString, Vec<u8>),
    /// Make the file, which holds `old`, hold `new` by writing these sectors in this order.
    Sectors {
        /// The file.
        name: OsString,
        /// What it holds.
        old: Vec<u8>,
        /// What it shall hold.
        new: Vec<u8>,
        /// Numbers of the sectors of 512 bytes that differ.
        order: Vec<usize>,
    },
    /// Remove every file whose name has this in it, in whatever case, with its side files.
    RemoveAll(&'static str),
}

/// Carries out a change in one folder.
///
/// # Errors
/// As the operating system says; the steps after the one that failed are not done.
pub fn carry_out(files: &impl InPlace, steps: &[Step]) -> io::Result<()> {
    for step in steps {
        match step {
            Step::Rehearse(name, new) => rehearse(files, name, new)?,
            Step::Replace(name, new) => replace(files, name, new)?,
            Step::Sectors { name, old, new, order } => {
                file::change_in_place(files, name, old, new, order)?;
            }
            Step::RemoveAll(part) => remove_all(files, part)?,
        }
    }
    Ok(())
}

fn rehearse(files: &impl InPlace, name: &OsStr, new: &[u8]) -> io::Result<()> {
    let content = Content::Bytes(new);
    if files.holds(name, &content)? {
        return Ok(());
    }
    match file::try_by(files, &content) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull && one_sector(files, name, new).is_some() => Ok(()),
        result => result,
    }
}

fn replace(files: &impl InPlace, name: &OsStr, new: &[u8]) -> io::Result<()> {
    match file::replace_by(files, name, &Content::Bytes(new)) {
        Err(e) if e.kind() == io::ErrorKind::StorageFull => {
            let Some(old) = one_sector(files, name, new) else { return Err(e) };
            tracing::warn!("{e}; {} is changed where it lies", name.to_string_lossy());
            file::change_in_place(files, name, &old, new, &file::differing(&old, new)).map(drop)
        }
        result => result.map(drop),
    }
}

/// What the file holds, where that becomes `new` by writing one sector, which a drive does at once.
fn one_sector(files: &impl InPlace, name: &OsStr, new: &[u8]) -> Option<Vec<u8>> {
    let mut old = Vec::new();
    let most = u64::try_from(new.len()).ok()?.saturating_add(1);
    files.hold(name).ok()??.take(most).read_to_end(&mut old).ok()?;
    (old.len() == new.len() && file::differing(&old, new).len() <= 1).then_some(old)
}

/// A damaged FAT may have one name several times: each removal takes one of them.
fn remove_all(files: &impl InPlace, part: &str) -> io::Result<()> {
    let mut others = Vec::new();
    for _ in 0..MOST {
        let names = files.names()?;
        let Some(name) = names.iter().find(|name| has(name, part) && !others.contains(*name)) else {
            return Ok(());
        };
        match file::remove(files, name) {
            Ok(_) => {}
            // A folder, which no bootloader reads a count from.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => others.push(name.clone()),
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other(format!("files named *{part}* are still there after {MOST} were removed")))
}

/// Names removed at most: U-Boot has been seen to leave a few.
const MOST: usize = 64;

/// Whether a name has `part` in it, in whatever case.
pub(super) fn has(name: &OsStr, part: &str) -> bool {
    name.to_string_lossy().to_lowercase().contains(part)
}

/// Makes a folder fit for a change: nothing an earlier one left, nothing of `fatrw` half done.
///
/// # Errors
/// As the operating system says. Then nothing in the folder may be touched.
pub(super) fn prepare(folder: &Folder, name: &OsStr) -> io::Result<()> {
    file::sweep(folder)?;
    file::commit_side_files(folder, name)?;
    Ok(())
}

/// The file of this name as the folder writes it, which on FAT may be in another case.
pub(super) fn find(folder: &Folder, name: &str) -> io::Result<Option<OsString>> {
    let mut names = folder.list()?.into_iter().filter(|(_, kind)| kind.is_none_or(|k| k == FileKind::File));
    Ok(names.find(|(n, _)| folder.same_name(n, name.as_ref())).map(|(n, _)| n))
}
