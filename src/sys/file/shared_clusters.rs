//! Files of a FAT that share clusters: after half a rename, or on a damaged file system. Unlinking one of them would free clusters of the
//! other.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::mount::MsFlags;
use nix::sys::statvfs::FsFlags;

use super::at;
use super::content::Content;
use super::fat::{Obstacle, Owners};
use super::folder::{FileKind, Folder};
use super::temporary::{is_temporary, replace_temporary};

#[allow(unsafe_code, missing_docs)]
mod ioctl {
    //! `FIBMAP` of `include/uapi/linux/fs.h`.
    nix::ioctl_readwrite_bad!(fibmap, 1, nix::libc::c_int);
}

impl Folder {
    /// Another file of the folder that starts at the same cluster, as half a rename leaves it on FAT.
    pub(super) fn twin(&self, name: &OsStr) -> io::Result<Option<OsString>> {
        #[cfg(feature = "crash-points")]
        if let Err(e) = crate::sys::crash_point::reach(&self.path().join(name), "crash-point twin") {
            return e.downcast().map(|crate::sys::crash_point::Answer(twin)| Some(twin));
        }
        if !self.is_fat() {
            return Ok(None);
        }
        twin(self, name, &self.open_file(name)?)
    }

    /// Why a temporary file must stay: freeing its clusters may free clusters of another file. Only on FAT.
    ///
    /// Needs `CAP_SYS_RAWIO`; after an error nothing may be unlinked.
    pub(crate) fn obstacle(&self, name: &OsStr, owners: &mut Owners) -> io::Result<Option<Obstacle>> {
        #[cfg(feature = "crash-points")]
        if let Err(e) = crate::sys::crash_point::reach(&self.path().join(name), "crash-point owners") {
            let shared = |answer: crate::sys::crash_point::Answer| vec![answer.0.to_string_lossy().into()];
            return e.downcast().map(|answer| Some(Obstacle::Shared(shared(answer))));
        }
        if self.is_fat() { obstacle(self, name, owners) } else { Ok(None) }
    }
}

/// The other file of this folder that starts at the same cluster. Only FAT can have one.
///
/// Needs `CAP_SYS_RAWIO`; after an error nothing may be unlinked.
fn twin(folder: &Folder, name: &OsStr, file: &File) -> io::Result<Option<OsString>> {
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

fn obstacle(folder: &Folder, name: &OsStr, owners: &mut Owners) -> io::Result<Option<Obstacle>> {
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
pub(super) fn separate(folder: &Folder, temporary: &OsStr, held: File, twin: &OsStr) -> io::Result<()> {
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
pub(super) fn make_writable_again(folder: &Folder, was: FsFlags) -> io::Result<()> {
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
