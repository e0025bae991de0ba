//! The mounted boot partition. No path leads out of it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path};

use crate::error::{Code, Error, Result};
use crate::sys::file::{self, FileKind, Folder};

/// The only link that may leave the partition: an encrypted disk keeps its EFI programs on another one.
const EFI: &str = "EFI";
const EFI_LINK: &str = "../efi/EFI";

#[derive(Debug)]
pub struct Destination {
    root: Folder,
    /// `EFI` of the non-encrypted boot partition.
    efi: Option<Folder>,
}

#[derive(Debug)]
pub enum Walk {
    There(Folder),
    Missing,
}

impl Destination {
    /// `non_encrypted`: the block device of the non-encrypted boot partition, where the boot split has mounted one at `efi` beside `point`.
    pub fn open(point: &Path, non_encrypted: Option<&Path>) -> Result<Destination> {
        let root = Folder::open(point).map_err(|e| cannot_open(point, e))?;
        let mut efi = None;
        if let Some(node) = non_encrypted {
            let meta = std::fs::metadata(node).map_err(|e| cannot_open(node, e))?;
            let beside = point.parent().unwrap_or(point).join("efi");
            // Without that mount and link, the board splits the partition in another way.
            if let Ok(folder) = Folder::open(&beside)
                && meta.file_type().is_block_device()
                && folder.dev() == meta.rdev()
            {
                efi = folder.enter(OsStr::new(EFI)).ok();
            }
        }
        Ok(Destination { root, efi })
    }

    /// On a running system. `plain`: mount point of the non-encrypted boot partition; the link may lead there if it is `efi` beside
    /// `point`.
    pub(crate) fn open_beside(point: &Path, plain: &Path) -> Result<Destination> {
        let root = Folder::open(point).map_err(|e| cannot_open(point, e))?;
        let beside = point.parent().unwrap_or(point).join("efi");
        let other = (plain == beside).then(|| Folder::open(&beside).ok()).flatten();
        let efi = other.filter(|f| f.dev() != root.dev()).and_then(|f| f.enter(OsStr::new(EFI)).ok());
        Ok(Destination { root, efi })
    }

    #[must_use]
    pub fn root(&self) -> &Folder {
        &self.root
    }

    /// Fails for every link except the allowed one.
    pub fn walk(&self, path: &Path) -> Result<Walk> {
        let mut here: Option<Folder> = None;
        for (i, part) in path.components().enumerate() {
            let Component::Normal(name) = part else { return Err(self.escapes(path)) };
            let now = here.as_ref().unwrap_or(&self.root);
            let next = match now.entry(name).map_err(|e| failed(now, name, e))?.map(|e| e.kind) {
                None => return Ok(Walk::Missing),
                Some(FileKind::Folder) => now.enter(name).map_err(|e| failed(now, name, e))?,
                Some(FileKind::Link) if i == 0 => self.follow(name).ok_or_else(|| self.escapes(path))?,
                Some(FileKind::Link) => return Err(self.escapes(path)),
                Some(_) => return Err(self.not_a_folder(path)),
            };
            // A file system mounted inside is another one.
            if next.dev() != now.dev() && !(i == 0 && name == EFI && self.efi.is_some()) {
                return Err(self.escapes(path));
            }
            here = Some(next);
        }
        match here {
            Some(folder) => Ok(Walk::There(folder)),
            None => {
                let same = OsStr::new(".");
                self.root.enter(same).map(Walk::There).map_err(|e| failed(&self.root, same, e))
            }
        }
    }

    /// The folder at `path`, or its innermost parent that exists: both are on one file system, now or later.
    pub(crate) fn nearest(&self, path: &Path) -> Result<Folder> {
        for ancestor in path.ancestors() {
            if let Walk::There(folder) = self.walk(ancestor)? {
                return Ok(folder);
            }
        }
        Err(self.escapes(path))
    }

    fn follow(&self, name: &OsStr) -> Option<Folder> {
        let efi = self.efi.as_ref().filter(|_| name == EFI)?;
        let leads = self.root.link(name).ok()?;
        (leads == Path::new(EFI_LINK)).then(|| efi.enter(OsStr::new(".")).ok())?
    }

    pub fn make(&self, path: &Path) -> Result<Folder> {
        if let Walk::There(folder) = self.walk(path)? {
            return Ok(folder);
        }
        let (Walk::There(parent), Some(name)) =
            (self.walk(path.parent().unwrap_or(Path::new("")))?, path.file_name())
        else {
            return Err(self.not_a_folder(path));
        };
        file::make_folder(&parent, name).map_err(|e| failed(&parent, name, e))?;
        parent.enter(name).map_err(|e| failed(&parent, name, e))
    }

    pub fn parent<'p>(&self, path: &'p Path) -> Result<(Walk, &'p OsStr)> {
        match path.file_name() {
            Some(name) => Ok((self.walk(path.parent().unwrap_or(Path::new("")))?, name)),
            None => Err(self.escapes(path)),
        }
    }

    #[must_use]
    pub fn escapes(&self, path: &Path) -> Error {
        let full = self.root.path().join(path);
        Error::new(
            Code::BootPathEscapes,
            format!("{} leads out of the boot partition, by a link or `..`", full.display()),
        )
        .object(full.display())
    }

    fn not_a_folder(&self, path: &Path) -> Error {
        let full = self.root.path().join(path);
        Error::new(
            Code::BootNameInvalid,
            format!("{} is not a directory on the boot partition", full.display()),
        )
        .object(full.display())
        .with_hint("rename it, or remove it: boot files belong into a directory of that name")
    }
}

fn cannot_open(path: &Path, e: io::Error) -> Error {
    Error::new(Code::BootMountFailed, format!("cannot open {}", path.display()))
        .object(path.display())
        .because(e)
}

#[must_use]
pub fn failed(folder: &Folder, name: &OsStr, e: io::Error) -> Error {
    let path = folder.path().join(name);
    let code = match e.kind() {
        io::ErrorKind::StorageFull => Code::BootPartitionFull,
        _ => Code::BootCopyFailed,
    };
    Error::new(code, format!("cannot write {}", path.display())).object(path.display()).because(e)
}
