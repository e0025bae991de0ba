//! Loader and configuration for encrypted disks.
//!
//! A release has two variants of each: `X.efi` and `X.efi.secureboot`, `grub.cfg` and `grub-luks.cfg` with its signature. On an
//! encrypted disk the firmware starts only the second variant, under the name of the first. copal's `1-bootfiles` renames it; after the
//! `1-bootfiles` of a shell release, this hook does.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use super::{FOR_BIOS, FOR_UEFI, cannot, place};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::file::{self, Content, FileKind, Folder};
use crate::unlock;

const SUFFIX: &str = ".secureboot";
const LUKS: &str = "grub-luks.cfg";
const LUKS_SIGNATURE: &str = "grub-luks.cfg.sig";
const GRUB_CONFIG: &str = "grub.cfg";
const SIGNATURE: &str = "grub.cfg.sig";

const SHIPPED: &str = "/resin-boot";

/// A folder of GRUB on the boot partition, and the same folder of the release.
struct Pair {
    there: Folder,
    shipped: Option<Folder>,
}

impl Pair {
    fn open(paths: &Paths, name: &str) -> Result<Option<Pair>> {
        let Some(path) = place(paths, name) else { return Ok(None) };
        let open = || {
            let there = Folder::open(&path)?;
            file::sweep(&there)?;
            Ok(there)
        };
        let there = open().map_err(|e| cannot("look at", &path, e))?;
        let below = name.strip_prefix("/mnt/boot").unwrap_or(name);
        let shipped = Folder::open(&paths.at(format!("{SHIPPED}{below}"))).ok();
        Ok(Some(Pair { there, shipped }))
    }

    /// The file for encrypted disks: from the release, on a file system with a journal, otherwise from the boot partition.
    fn source(&self, name: &OsStr) -> Option<File> {
        let shipped = self.shipped.as_ref().and_then(|folder| folder.open_file(name).ok());
        shipped.or_else(|| self.there.open_file(name).ok())
    }

    fn put(&self, name: &OsStr, source: &File) -> Result<()> {
        let path = self.there.path().join(name);
        match file::replace(&self.there, name, &Content::File(source)) {
            Ok(file::Outcome::Written) => {
                tracing::info!("{} is the one for encrypted disks now", path.display());
                Ok(())
            }
            Ok(file::Outcome::Unchanged) => Ok(()),
            Err(e) => Err(cannot("write", &path, e)),
        }
    }

    fn remove(&self, name: &OsStr) {
        if let Err(e) = file::remove(&self.there, name) {
            tracing::warn!("cannot remove {}: {e}", self.there.path().join(name).display());
        }
    }

    fn loaders(&self) -> io::Result<BTreeSet<OsString>> {
        let files =
            self.there.list()?.into_iter().filter(|(_, kind)| kind.is_none_or(|k| k == FileKind::File));
        Ok(files.filter_map(|(name, _)| loader(&name)).collect())
    }

    fn loaders_in_place(&self) -> Result<()> {
        let path = self.there.path();
        let loaders = self.loaders().map_err(|e| cannot("look at", path, e))?;
        for name in loaders {
            let secure = secure(&name);
            let source = self.source(&secure).ok_or_else(|| missing(path, &secure))?;
            self.put(&name, &source)?;
            self.remove(&secure);
        }
        Ok(())
    }

    fn config_in_place(&self) -> Result<()> {
        for name in [LUKS, LUKS_SIGNATURE] {
            // Shell releases write these with `fatrw`, which may have been interrupted.
            let settled = file::commit_side_files(&self.there, OsStr::new(name));
            settled.map_err(|e| cannot("complete", &self.there.path().join(name), e))?;
        }
        let Some(config) = self.source(OsStr::new(LUKS)) else {
            // A power cut below leaves the signature alone.
            self.remove(OsStr::new(LUKS_SIGNATURE));
            return Ok(());
        };
        let signature = self.source(OsStr::new(LUKS_SIGNATURE));
        let signature = signature.ok_or_else(|| missing(self.there.path(), OsStr::new(LUKS_SIGNATURE)))?;
        let files = [(GRUB_CONFIG, &config), (SIGNATURE, &signature)]
            .map(|(name, file)| (OsStr::new(name), Content::File(file)));
        let path = self.there.path().join(GRUB_CONFIG);
        if file::replace_together(&self.there, &files).map_err(|e| cannot("write", &path, e))?
            == file::Outcome::Written
        {
            tracing::info!("{} and its signature are those for encrypted disks now", path.display());
        }
        self.remove(OsStr::new(LUKS));
        self.remove(OsStr::new(LUKS_SIGNATURE));
        Ok(())
    }
}

pub(super) fn put_in_place(paths: &Paths, uefi: bool) -> Result<()> {
    if uefi && unlock::has_other_loader(paths, true, &paths.at(SHIPPED)) {
        tracing::warn!(
            "loader and configuration stay as they are: the TPM has no policy for the release's loader"
        );
        return Ok(());
    }
    if let Some(pair) = Pair::open(paths, FOR_UEFI)? {
        if uefi {
            pair.loaders_in_place()?;
        }
        pair.config_in_place()?;
    }
    if let Some(pair) = Pair::open(paths, FOR_BIOS)?.filter(|_| !uefi) {
        pair.config_in_place()?;
    }
    Ok(())
}

pub(super) fn remove(paths: &Paths) {
    for name in [FOR_UEFI, FOR_BIOS] {
        let pair = match Pair::open(paths, name) {
            Ok(Some(pair)) => pair,
            Ok(None) => continue,
            Err(e) => {
                tracing::warn!("{e}");
                continue;
            }
        };
        match pair.loaders() {
            Ok(loaders) => loaders.iter().for_each(|loader| pair.remove(&secure(loader))),
            Err(e) => tracing::warn!("{e}"),
        }
        pair.remove(OsStr::new(LUKS));
        pair.remove(OsStr::new(LUKS_SIGNATURE));
    }
}

/// `X.efi` for `X.efi` and `X.efi.secureboot`.
fn loader(name: &OsStr) -> Option<OsString> {
    let bytes = name.as_bytes();
    let end = |with: &str| {
        let at = bytes.len().checked_sub(with.len())?;
        let (start, rest) = bytes.split_at_checked(at)?;
        rest.eq_ignore_ascii_case(with.as_bytes()).then_some(start)
    };
    let plain = end(SUFFIX).unwrap_or(bytes);
    let is_loader =
        plain.len() > 4 && OsStr::from_bytes(plain).to_ascii_lowercase().as_bytes().ends_with(b".efi");
    is_loader.then(|| OsString::from_vec(plain.to_vec()))
}

fn secure(loader: &OsStr) -> OsString {
    let mut name = loader.to_owned();
    name.push(SUFFIX);
    name
}

fn missing(folder: &Path, name: &OsStr) -> Error {
    let path = folder.join(name);
    let text = format!("cannot find {}, nor is it among the release's boot files", path.display());
    Error::new(Code::SecureLoaderMissing, text).object(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_variants_have_one_name() {
        for (name, plain) in [
            ("bootx64.efi", Some("bootx64.efi")),
            ("BOOTX64.EFI.SECUREBOOT", Some("BOOTX64.EFI")),
            ("a.efi.secureboot", Some("a.efi")),
            (".efi", None),
            ("a.efi.bak", None),
            (".secureboot", None),
            ("grub.cfg", None),
        ] {
            assert_eq!(loader(OsStr::new(name)).as_deref(), plain.map(OsStr::new), "{name}");
        }
    }
}
