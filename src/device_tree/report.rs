//! What is in the places that the settings name.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{ExpectedFiles, Named, Place, running_boot};
use crate::config::paths::Paths;
use crate::image::digest::Digest256;
use crate::slot::hostapp;
use crate::sys::file::open_regular;

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The running release has the same file.
    Release,
    Owner,
    /// It is on the boot partition, which updates do not clear.
    BootPartition,
    Missing,
}

/// A device tree or overlay that a setting names, in the running system.
#[derive(Debug, Clone, Serialize)]
pub struct Tree {
    /// The setting.
    pub key: &'static str,
    /// Below the boot folder or the boot partition.
    pub name: String,
    /// Whether the board's bootloader takes the setting.
    pub counts: bool,
    /// Whether the device does not boot without it.
    pub required: bool,
    /// Where the bootloader finds it.
    pub file: Option<PathBuf>,
    pub size: Option<u64>,
    pub sha256: Option<Digest256>,
    pub origin: Origin,
}

impl ExpectedFiles {
    #[must_use]
    pub(crate) fn trees(&self, paths: &Paths) -> Vec<Tree> {
        self.named.iter().map(|named| self.tree(named, paths)).collect()
    }

    fn tree(&self, named: &Named, paths: &Paths) -> Tree {
        let file = named.file(paths);
        let content = file.as_deref().and_then(|file| content(file).ok());
        let origin = match &file {
            None => Origin::Missing,
            Some(file) if file.starts_with(paths.plain_boot()) => Origin::BootPartition,
            Some(_) => match content.as_ref().zip(of_release(paths, &named.path)) {
                Some((own, theirs)) if *own == theirs => Origin::Release,
                _ => Origin::Owner,
            },
        };
        Tree {
            key: named.key.as_str(),
            name: named.path.display().to_string(),
            counts: named.counts,
            required: self.is_required(named),
            size: content.as_ref().map(|c| c.size),
            sha256: content.map(|c| c.sha256),
            file,
            origin,
        }
    }
}

impl Named {
    /// Where the bootloader finds it in the running system.
    #[must_use]
    pub(crate) fn file(&self, paths: &Paths) -> Option<PathBuf> {
        self.places(paths, &running_boot(paths)).into_iter().find(|place| place.is_file())
    }

    /// A file of that name where this bootloader does not look.
    #[must_use]
    pub(crate) fn elsewhere(&self, paths: &Paths) -> Option<PathBuf> {
        let other =
            Named { place: if self.is_in_root() { Place::Boot } else { Place::Root }, ..self.clone() };
        other.file(paths)
    }
}

/// Size and digest of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) size: u64,
    pub(crate) sha256: Digest256,
}

pub(crate) fn content(file: &Path) -> io::Result<Content> {
    let mut file = open_regular(file)?;
    let (mut hash, mut size, mut buf) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let n = file.read(&mut buf)?;
        let Some(part) = buf.get(..n).filter(|part| !part.is_empty()) else { break };
        hash.update(part);
        size += u64::try_from(n).unwrap_or(u64::MAX);
    }
    Ok(Content { size, sha256: Digest256(hash.finalize().into()) })
}

/// The boot folder began as a copy of the one in the release's layers, which no program changes.
pub(crate) fn of_release(paths: &Paths, path: &Path) -> Option<Content> {
    content(&hostapp::release_file(&paths.active(), &Path::new("boot").join(path))?).ok()
}
