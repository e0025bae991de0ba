//! Temporary files: their names, and how one is written and takes the place of another file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicU32, Ordering};

use super::at;
use super::content::Content;
use super::folder::Folder;
use super::listing::Listing;

const PREFIX: &[u8] = b"CPL";
const SUFFIX: &[u8] = b".TMP";

/// Eight and three capitals and digits: one folder entry on FAT, without a long name that a cut could separate from it.
pub(super) fn temporary_name(number: u32) -> OsString {
    format!("CPL{:05X}.TMP", number & 0xf_ffff).into()
}

/// Whether this is the name of a temporary file of copal.
#[must_use]
pub fn is_temporary(name: &OsStr) -> bool {
    let upper = name.as_bytes().to_ascii_uppercase();
    let digits = upper.strip_prefix(PREFIX).and_then(|n| n.strip_suffix(SUFFIX));
    digits.is_some_and(|d| d.len() == 5 && d.iter().all(u8::is_ascii_hexdigit))
}

pub(super) fn create_unique(
    folder: &Folder,
    listing: &Listing,
    make: impl Fn(&OsStr) -> io::Result<File>,
) -> io::Result<(OsString, File)> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mut last = None;
    for _ in 0..64 {
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mixed = clock.subsec_nanos() ^ std::process::id().rotate_left(12);
        let name = temporary_name(mixed.wrapping_add(NUMBER.fetch_add(1, Ordering::Relaxed)));
        // Checked before it is created: on FAT `O_EXCL` alone does not see short names of other files.
        if listing.has(folder, &name) {
            continue;
        }
        match make(&name) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = Some(e),
            made => return Ok((name.clone(), at(made, "make", &name)?)),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::other("no unused temporary name")))
}

/// Writes a temporary file and renames it over `name`, whose old file the caller holds. All of it is on the medium afterwards.
/// The new file is still open.
pub(super) fn replace_temporary(
    folder: &Folder,
    name: &OsStr,
    content: &Content<'_>,
    mode: u32,
) -> io::Result<File> {
    replace_temporary_listed(folder, &Listing::of(folder)?, name, content, mode)
}

pub(super) fn replace_temporary_listed(
    folder: &Folder,
    listing: &Listing,
    name: &OsStr,
    content: &Content<'_>,
    mode: u32,
) -> io::Result<File> {
    let (temporary, new) = create_unique(folder, listing, |t| folder.create(t, mode))?;
    if let Err(e) = fill(folder, &temporary, &new, content) {
        // It never had another name, so its clusters are its own. If this fails too, the next start sweeps it away.
        if let Err(also) = folder.unlink(&temporary).and_then(|()| folder.sync_folder()) {
            tracing::warn!("cannot remove {}: {also}", temporary.to_string_lossy());
        }
        return Err(e);
    }
    // From here on a failure does not remove the temporary file: on the medium it may have become the target.
    at(folder.rename(&temporary, name), "rename over", name)?;
    at(folder.sync(&new), "sync", name)?;
    at(folder.sync_folder(), "sync the folder of", name)?;
    at(folder.flush(), "flush the drive below", name)?;
    Ok(new)
}

/// The temporary file is completely on the medium when this returns, with its cluster chain: the rename must not reach the
/// medium before it.
pub(super) fn fill(folder: &Folder, temporary: &OsStr, new: &File, content: &Content<'_>) -> io::Result<()> {
    at(folder.write(new, content), "write", temporary)?;
    // The table before the entry that leads into it: the kernel writes the entry with the next `fsync` of the file. In the other
    // order, a cut leaves an entry that leads to clusters which the table has as free.
    at(folder.flush(), "flush the drive below", temporary)?;
    at(folder.sync(new), "sync", temporary)?;
    at(folder.sync_folder(), "sync the folder of", temporary)?;
    at(folder.flush(), "flush the drive below", temporary)?;
    if at(folder.holds(temporary, content), "read back", temporary)? {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{}: what was read back is not what was written", temporary.to_string_lossy()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_from_those_of_other_programs() {
        for number in [0, 1, 0xf_ffff, u32::MAX] {
            let name = temporary_name(number);
            assert_eq!(name.len(), 12);
            assert!(is_temporary(&name) && is_temporary(&name.to_ascii_lowercase()));
        }
        for other in
            ["CPL.TMP", "CPL0000.TMP", "CPL0000G.TMP", "CPL000000.TMP", "ACPL00000.TMP", "CPL00000.TM"]
        {
            assert!(!is_temporary(OsStr::new(other)), "{other}");
        }
    }
}
