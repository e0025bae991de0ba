//! Temporary files that a power cut has left.
//!
//! A rename on FAT changes two folder entries, which reach the medium in any order. A cut between them can leave the target *and*
//! the temporary file with the same clusters. Unlinking one of them frees the clusters of the other. On a damaged FAT a temporary file
//! may have clusters of any other file: then it stays.

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
use super::fat::{Obstacle, Owners};
use super::folder::{FileKind, Folder, lock};
use super::replace::{remove, replace_temporary};
use crate::sys::crash_point::crash_point;

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

/// Whether this is the name of a temporary file of copal.
#[must_use]
pub fn is_temporary(name: &OsStr) -> bool {
    let upper = name.as_bytes().to_ascii_uppercase();
    let digits = upper.strip_prefix(PREFIX).and_then(|n| n.strip_suffix(SUFFIX));
    digits.is_some_and(|d| d.len() == 5 && d.iter().all(u8::is_ascii_hexdigit))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepResult {
    Removed,
    /// It shared its clusters with this file, which got its own copy; then the temporary file was removed.
    Repaired(OsString),
    /// Another process writes to it now.
    InUse,
    /// Not a file: it was not changed.
    Left,
    /// A removal could free clusters of another file: it was not changed.
    Kept(Obstacle),
}

type Swept = Vec<(OsString, SweepResult)>;

/// Removes what an interrupted [`replace`](super::replace) has left in a folder (not in subfolders). Call it before anything in
/// that folder is replaced or removed: only until then can a temporary file that shares its clusters be recognised.
pub fn sweep(folder: &Folder) -> io::Result<Swept> {
    crash_point!(folder.path(), "sweep");
    let was = nix::sys::statvfs::statvfs(folder.path())?.flags();
    let (mut swept, mut owners) = (Swept::new(), Owners::default());
    for (name, kind) in folder.list()?.into_iter().filter(|(n, _)| is_temporary(n)) {
        let fate = at(sweep_one(folder, &name, kind, &mut owners), "clean up", &name)?;
        let path = folder.path().join(&name);
        if matches!(fate, SweepResult::Repaired(_)) {
            // The file has other clusters now.
            owners = Owners::default();
        }
        match &fate {
            SweepResult::Removed => tracing::info!("removed the temporary file {}", path.display()),
            SweepResult::Repaired(of) => tracing::warn!(
                "{} and {} shared their clusters after a power cut; the file has got its own",
                path.display(),
                of.to_string_lossy()
            ),
            SweepResult::InUse => tracing::debug!("{} is in use", path.display()),
            SweepResult::Left => {
                tracing::warn!("{} was being made when the power went; it stays", path.display());
            }
            SweepResult::Kept(why) => tracing::warn!("{} stays: {why}; see `copal doctor`", path.display()),
        }
        swept.push((name, fate));
    }
    if folder.is_fat() && !swept.is_empty() {
        make_writable_again(folder, was)?;
    }
    Ok(swept)
}

fn sweep_one(
    folder: &Folder,
    name: &OsStr,
    kind: Option<FileKind>,
    owners: &mut Owners,
) -> io::Result<SweepResult> {
    // A folder may share its cluster with its future name, and nothing shows that.
    if kind != Some(FileKind::File) {
        return Ok(SweepResult::Left);
    }
    let file = folder.open_file(name)?;
    match lock(&file) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(SweepResult::InUse),
        Err(e) => return Err(e),
    }
    if let Some(obstacle) = folder.obstacle(name, owners)? {
        return Ok(SweepResult::Kept(obstacle));
    }
    if let Some(twin) = folder.twin(name)? {
        separate(folder, name, file, &twin)?;
        return Ok(SweepResult::Repaired(twin));
    }
    // Locked until the name has gone: a process that has just created it sees that it was taken.
    remove(folder, name)?;
    drop(file);
    at(folder.flush(), "flush the drive below", name)?;
    Ok(SweepResult::Removed)
}

/// The other file of this folder that starts at the same cluster. Only FAT can have one.
///
/// Needs `CAP_SYS_RAWIO`; after an error nothing may be unlinked.
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

pub(super) fn obstacle(folder: &Folder, name: &OsStr, owners: &mut Owners) -> io::Result<Option<Obstacle>> {
    let file = folder.open_file(name)?;
    let twin = twin(folder, name, &file)?.is_some_and(|twin| !is_temporary(&twin));
    let block = at(first_block(&file), "find the clusters of", name)?;
    Ok(owners.obstacle(folder, name, u64::try_from(block).unwrap_or(0), twin))
}

/// Block of the device at which a file starts; 0 for an empty file.
#[allow(unsafe_code)]
fn first_block(file: &File) -> io::Result<nix::libc::c_int> {
    let mut block: nix::libc::c_int = 0;
    // SAFETY: FIBMAP reads and stores one int where the pointer leads, which lives through the call.
    unsafe { ioctl::fibmap(file.as_raw_fd(), &raw mut block) }?;
    Ok(block)
}

/// Gives `twin` clusters of its own, then removes `temporary`. Both orphans stay open until the medium has neither of them; then
/// the kernel frees the shared clusters twice, the second time without effect.
fn separate(folder: &Folder, temporary: &OsStr, held: File, twin: &OsStr) -> io::Result<()> {
    if is_temporary(twin) {
        return Err(io::Error::other(format!("it shares its clusters with {}", twin.to_string_lossy())));
    }
    let shared = folder.open_file(twin)?;
    let content = Content::File(&shared);
    let own = replace_temporary(folder, twin, &content, content.mode()?)?;
    at(folder.unlink(temporary), "remove", temporary)?;
    at(folder.sync_folder(), "sync the folder of", temporary)?;
    at(folder.flush(), "flush the drive below", temporary)?;
    drop(own);
    drop(shared);
    drop(held);
    Ok(())
}

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

/// Freeing clusters that the table already has as free (after a cut between table and entry, or from two orphans that shared
/// them) does no damage: the kernel notices, changes nothing, and by default makes the file system read-only.
fn make_writable_again(folder: &Folder, was: FsFlags) -> io::Result<()> {
    let point = |m: &crate::sys::mount::Mount| m.dev == crate::sys::block::major_minor(folder.dev());
    let now = nix::sys::statvfs::statvfs(folder.path())?.flags();
    if was.contains(FsFlags::ST_RDONLY) || !now.contains(FsFlags::ST_RDONLY) {
        return Ok(());
    }
    tracing::warn!(
        "{} has become read-only meanwhile; copal makes it writable again",
        folder.path().display()
    );
    // These flags have the same bits in both interfaces.
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
        assert!(matches!(sweep(&folder).unwrap()[..], [(_, SweepResult::InUse)]));
        drop(file);
        let swept = folder.open_file(&name).unwrap();
        assert!(matches!(sweep(&folder).unwrap()[..], [(_, SweepResult::Removed)]));
        assert_eq!(kept(&swept), Err(io::ErrorKind::AlreadyExists));
        // Another process has taken the name since.
        let _other = make();
        assert_eq!(kept(&swept), Err(io::ErrorKind::AlreadyExists));
        // The sweep has it open.
        let sweeping = folder.open_file(&name).unwrap();
        lock(&sweeping).unwrap();
        assert_eq!(kept(&folder.open_file(&name).unwrap()), Err(io::ErrorKind::AlreadyExists));
    }

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
