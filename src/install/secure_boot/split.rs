//! The two boot partitions of a board with UEFI: the firmware's has `EFI`, what unlocks the disk, and what starts it; all else is encrypted.
//!
//! Paths and the link are those of meta-balena v8.0.2 (`bootpart_split` of `balena-init-flasher-efi`): the installed system finds its
//! EFI programs through them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use crate::boot_files::install::BootPartition;
use crate::error::{Code, Error, Result};
use crate::sys::file::{self, Content, FileKind, Folder};

pub(in crate::install) const EFI: &str = "EFI";
const EFI_LINK: &str = "../efi/EFI";

/// What a file of the firmware's partition has to be.
pub(super) struct NewFile<'a> {
    /// Below the partition.
    pub(super) folders: &'a [&'a str],
    pub(super) name: &'a OsStr,
    pub(super) content: &'a [u8],
}

/// Moves all but `EFI` from the `plain` partition to the `encrypted` one, which gets a link, and writes `files` beside `EFI`, past the cache.
pub(super) fn split(plain: &BootPartition, encrypted: &BootPartition, files: &[NewFile<'_>]) -> Result<()> {
    let open = |partition: &BootPartition| {
        Folder::open(partition.point()).map_err(|e| failed(partition.point(), "open", e))
    };
    let (from, to) = (open(plain)?, open(encrypted)?);
    let names = from.list().map_err(|e| failed(from.path(), "list", e))?;
    for (name, _) in names.iter().filter(|(name, _)| !from.same_name(name, OsStr::new(EFI))) {
        move_entry(&from, &to, name).map_err(|e| failed(&from.path().join(name), "move", e))?;
    }
    let link = to.path().join(EFI);
    std::os::unix::fs::symlink(EFI_LINK, &link).map_err(|e| failed(&link, "make the link", e))?;
    for new in files {
        let put = || {
            let mut folder = from.enter(OsStr::new("."))?;
            for name in new.folders {
                folder = entered(&folder, OsStr::new(name))?;
            }
            file::replace(&folder, new.name, &Content::Bytes(new.content))
        };
        put().map_err(|e| failed(&from.path().join(new.name), "write", e))?;
    }
    Ok(())
}

/// `NAME.efi.secureboot` takes the place of each `NAME.efi` in this folder of the partition: of those that the image has.
pub(super) fn take_secure_programs(plain: &BootPartition, folder: &Path, names: &[OsString]) -> Result<()> {
    let path = plain.point().join(folder);
    let folder = Folder::open(&path).map_err(|e| failed(&path, "open", e))?;
    for name in names {
        let mut secure = name.clone();
        secure.push(super::SECURE_SUFFIX);
        let put = || {
            let program = folder.open_file(&secure)?;
            file::replace(&folder, name, &Content::File(&program))?;
            file::remove(&folder, &secure)
        };
        put().map_err(|e| failed(&path.join(&secure), "use", e))?;
    }
    Ok(())
}

/// Files and folders only: FAT has no others.
fn move_entry(from: &Folder, to: &Folder, name: &OsStr) -> io::Result<()> {
    match from.entry(name)?.map(|entry| entry.kind) {
        Some(FileKind::Folder) => {
            let (inner, target) = (from.enter(name)?, entered(to, name)?);
            for (name, _) in inner.list()? {
                move_entry(&inner, &target, &name)?;
            }
            file::remove_folder(from, name)
        }
        Some(FileKind::File) => {
            file::replace(to, name, &Content::File(&from.open_file(name)?))?;
            file::remove(from, name).map(drop)
        }
        Some(FileKind::Link | FileKind::Other) => Err(io::Error::other("it is neither a file nor a folder")),
        None => Ok(()),
    }
}

/// The folder, made where it is missing.
fn entered(folder: &Folder, name: &OsStr) -> io::Result<Folder> {
    if folder.entry(name)?.is_none() {
        file::make_folder(folder, name)?;
    }
    folder.enter(name)
}

fn failed(path: &Path, what: &str, e: io::Error) -> Error {
    let path = path.display();
    Error::new(Code::EncryptionFailed, format!("cannot split the boot partition: cannot {what} {path}"))
        .object(path)
        .because(e)
        .after_write()
}
