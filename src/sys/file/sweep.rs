//! Temporaries that a power cut left behind.
//!
//! A rename on FAT is two changes of folder entries, which reach the medium in any order. A cut between them can leave the
//! target *and* the temporary leading to the same clusters. To unlink either one then frees the clusters of the other.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::mount::MsFlags;
use nix::sys::statvfs::FsFlags;

use super::at;
use super::content::Content;
use super::folder::{FileKind, Folder, lock};
use super::replace::{Steps, remove, replace_temporary};

#[allow(unsafe_code, missing_docs)]
mod ioctl {
    //! `FIBMAP` of `include/uapi/linux/fs.h`.
    nix::ioctl_readwrite_bad!(fibmap, 1, nix::libc::c_int);
}

const PREFIX: &[u8] = b"CPL";
const SUFFIX: &[u8] = b".TMP";

/// Eight and three capitals and digits: one folder entry on FAT, without a long name that a cut could separate from it.
pub(super) fn temporary_name(number: u32) -> OsString {
    format!("CPL{:05X}.TMP", number & 0xf_ffff).into()
}

/// Whether this is the name of a temporary of ours.
#[must_use]
pub fn is_leftover(name: &OsStr) -> bool {
    let upper = name.as_bytes().to_ascii_uppercase();
    let digits = upper.strip_prefix(PREFIX).and_then(|n| n.strip_suffix(SUFFIX));
    digits.is_some_and(|d| d.len() == 5 && d.iter().all(u8::is_ascii_hexdigit))
}

/// What became of a leftover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leftover {
    /// It has been removed.
    Removed,
    /// It shared its clusters with this file, which has got a copy of its own; then it was removed.
    Repaired(OsString),
    /// Somebody is writing to it now.
    InUse,
    /// No file: it was left where it is.
    Left,
}

/// The leftovers of a folder, by name.
pub type Swept = Vec<(OsString, Leftover)>;

/// Removes what an interrupted [`replace`](super::replace) left in a folder (not in those below). To be done before anything in
/// that folder is replaced or removed: a leftover that shares its clusters with a file can be told from others only until then.
///
/// # Errors
/// The folder cannot be listed, or a file that was left cannot be dealt with. Then nothing in the folder may be touched.
pub fn sweep(folder: &Folder) -> io::Result<Swept> {
    let was = nix::sys::statvfs::statvfs(folder.path())?.flags();
    let mut swept = Swept::new();
    for (name, kind) in folder.list()?.into_iter().filter(|(n, _)| is_leftover(n)) {
        let fate = at(sweep_one(folder, &name, kind), "clean up", &name)?;
        let path = folder.path().join(&name);
        match &fate {
            Leftover::Removed => tracing::info!("removed the leftover {}", path.display()),
            Leftover::Repaired(of) => tracing::warn!(
                "{} and {} shared their clusters after a power cut; the file has got its own",
                path.display(),
                of.to_string_lossy()
            ),
            Leftover::InUse => tracing::debug!("{} is in use", path.display()),
            Leftover::Left => {
                tracing::warn!("{} was being made when the power went; it stays", path.display());
            }
        }
        swept.push((name, fate));
    }
    if folder.is_fat() && !swept.is_empty() {
        make_writable_again(folder, was)?;
    }
    Ok(swept)
}

fn sweep_one(folder: &Folder, name: &OsStr, kind: Option<FileKind>) -> io::Result<Leftover> {
    // A folder may share its cluster with the one it was to become, and there is no way to tell.
    if kind != Some(FileKind::File) {
        return Ok(Leftover::Left);
    }
    let file = folder.open_file(name)?;
    match lock(&file) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Leftover::InUse),
        Err(e) => return Err(e),
    }
    if let Some(twin) = twin(folder, name, &file)? {
        separate(folder, name, file, &twin)?;
        return Ok(Leftover::Repaired(twin));
    }
    // Locked until the name has gone: whoever has just made it sees by either that it was taken.
    remove(folder, name)?;
    drop(file);
    at(folder.flush(), "flush the drive below", name)?;
    Ok(Leftover::Removed)
}

/// The other file of this folder that begins at the same cluster. Only FAT can have one.
///
/// Needs `CAP_SYS_RAWIO`; an error means that nobody can tell, and then nothing may be unlinked.
pub(super) fn twin(folder: &Folder, name: &OsStr, file: &File) -> io::Result<Option<OsString>> {
    if !folder.is_fat() {
        return Ok(None);
    }
    let first = at(first_block(file), "find the clusters of", name)?;
    if first == 0 {
        return Ok(None);
    }
    for (other, kind) in folder.list()? {
        if other == *name || kind != Some(FileKind::File) {
            continue;
        }
        if at(first_block(&folder.open_file(&other)?), "find the clusters of", &other)? == first {
            return Ok(Some(other));
        }
    }
    Ok(None)
}

/// Block of the device at which a file begins; 0 for an empty one.
#[allow(unsafe_code)]
fn first_block(file: &File) -> io::Result<nix::libc::c_int> {
    let mut block: nix::libc::c_int = 0;
    // SAFETY: FIBMAP reads and stores one int where the pointer leads, which lives through the call.
    unsafe { ioctl::fibmap(file.as_raw_fd(), &raw mut block) }?;
    Ok(block)
}

/// Gives `twin` clusters of its own, then removes `leftover`. Both orphans are held until the medium knows neither of them; then
/// the kernel frees the shared clusters twice, the second time in vain.
fn separate(folder: &Folder, leftover: &OsStr, held: File, twin: &OsStr) -> io::Result<()> {
    if is_leftover(twin) {
        return Err(io::Error::other(format!("it shares its clusters with {}", twin.to_string_lossy())));
    }
    let shared = folder.open_file(twin)?;
    let own = replace_temporary(folder, twin, &Content::File(&shared))?;
    at(folder.unlink(leftover), "remove", leftover)?;
    at(folder.sync_folder(), "sync the folder of", leftover)?;
    at(folder.flush(), "flush the drive below", leftover)?;
    drop(own);
    drop(shared);
    drop(held);
    Ok(())
}

/// [`separate`] of a side file, which nobody else will look for afterwards.
pub(super) fn separate_side(folder: &Folder, side: &OsStr, twin: &OsStr) -> io::Result<()> {
    let was = nix::sys::statvfs::statvfs(folder.path())?.flags();
    separate(folder, side, folder.open_file(side)?, twin)?;
    tracing::warn!(
        "{} and {} shared their clusters after a power cut; the file has got its own",
        folder.path().join(side).display(),
        twin.to_string_lossy()
    );
    make_writable_again(folder, was)
}

/// Clusters that are freed although the table has them as free already, because a cut tore table and entry apart or because two
/// orphans shared them, are no harm: the kernel notices, changes nothing, and by default makes the file system read-only.
fn make_writable_again(folder: &Folder, was: FsFlags) -> io::Result<()> {
    let point = |m: &crate::sys::mount::Mount| m.dev == crate::sys::block::major_minor(folder.dev());
    let now = nix::sys::statvfs::statvfs(folder.path())?.flags();
    if was.contains(FsFlags::ST_RDONLY) || !now.contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    tracing::warn!("{} has become read-only meanwhile; making it writable again", folder.path().display());
    // These have the same bits in both interfaces.
    let kept = FsFlags::ST_NOSUID | FsFlags::ST_NODEV | FsFlags::ST_NOEXEC | FsFlags::ST_NOATIME;
    let flags = MsFlags::from_bits_truncate((was & kept).bits()) | MsFlags::MS_REMOUNT;
    let mounts = crate::sys::mount::read_mounts(Path::new("/proc/self/mountinfo"))?;
    for mount in mounts.iter().filter(|m| point(m)) {
        nix::mount::mount(None::<&str>, &mount.point, None::<&str>, flags, None::<&str>)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_that_is_swept_before_it_is_locked_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let name = temporary_name(1);
        let make = || File::create_new(dir.path().join(&name)).unwrap();
        let kept = |file: &File| folder.keep(&name, file).map_err(|e| e.kind());

        let file = make();
        kept(&file).unwrap();
        assert!(matches!(sweep(&folder).unwrap()[..], [(_, Leftover::InUse)]));
        drop(file);
        // The sweep has removed it.
        let swept = folder.open_file(&name).unwrap();
        assert!(matches!(sweep(&folder).unwrap()[..], [(_, Leftover::Removed)]));
        assert_eq!(kept(&swept), Err(io::ErrorKind::AlreadyExists));
        // Somebody else has the name since.
        let _other = make();
        assert_eq!(kept(&swept), Err(io::ErrorKind::AlreadyExists));
        // The sweep is at it.
        let sweeping = folder.open_file(&name).unwrap();
        lock(&sweeping).unwrap();
        assert_eq!(kept(&folder.open_file(&name).unwrap()), Err(io::ErrorKind::AlreadyExists));
    }

    #[test]
    fn names_are_told_from_those_of_others() {
        for number in [0, 1, 0xf_ffff, u32::MAX] {
            let name = temporary_name(number);
            assert_eq!(name.len(), 12);
            assert!(is_leftover(&name) && is_leftover(&name.to_ascii_lowercase()));
        }
        for other in
            ["CPL.TMP", "CPL0000.TMP", "CPL0000G.TMP", "CPL000000.TMP", "ACPL00000.TMP", "CPL00000.TM"]
        {
            assert!(!is_leftover(OsStr::new(other)), "{other}");
        }
    }
}
