//! `99-resin-grub`: selects a root for GRUB, and updates GRUB itself, which both roots share.

mod bios;
mod secure;

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::switch::{root_to_select, select};
use crate::boot_state::{Keep, grub, retire_others};
use crate::config::paths::Paths;
use crate::disk::{Facts, resolve};
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::slot::Root;
use crate::sys::file::{self, FileKind, Folder};

const FOR_BIOS: &str = "/mnt/boot/grub";
const FOR_UEFI: &str = "/mnt/boot/EFI/BOOT";

/// For a new release the selection comes last: a failure of the rest leaves the old one selected. For an undo it comes first.
pub(super) fn run(context: &Context) -> Result<()> {
    let facts = Facts::gather(&context.paths)?;
    let root = root_to_select(context, &facts)?;
    if context.during_update {
        put_in_order(context, &facts, &root)?;
        return switch(context, &root);
    }
    if let Err(e) = switch(context, &root) {
        tracing::warn!("{e}; trying again later");
    }
    let ordered = put_in_order(context, &facts, &root);
    // Again: if the folder of the first `grubenv` is gone, another one counts. Mostly nothing is left to write.
    switch(context, &root)?;
    ordered
}

fn switch(context: &Context, root: &Root) -> Result<()> {
    select(context, grub(&context.paths)?.as_ref(), root)?;
    retire_others(&context.paths, Keep::UbootOrGrub)
}

fn put_in_order(context: &Context, facts: &Facts, root: &Root) -> Result<()> {
    let paths = &context.paths;
    let uefi = paths.at("/sys/firmware/efi").is_dir();
    if root.encrypted {
        secure::put_in_place(paths, uefi)?;
    } else {
        secure::remove(paths);
    }
    if uefi {
        remove_other(paths, FOR_UEFI, "grub");
    } else {
        bios::write(paths, facts)?;
        remove_other(paths, FOR_BIOS, "EFI");
    }
    Ok(())
}

/// Removes the folder for the other firmware: every release has both. It does no harm, so a failure is only logged.
fn remove_other(paths: &Paths, kept: &str, name: &str) {
    let boot = paths.boot();
    if !boot.join(name).is_symlink() && !boot.join(name).exists() {
        return;
    }
    // Firmware that is not visible (`noefi`, a hidden sysfs) must not cost the only configuration.
    if !place(paths, kept).is_some_and(|p| p.join("grub.cfg").is_file() || p.join("grubenv").is_file()) {
        tracing::warn!("{kept} has no configuration of GRUB; keeping {}", boot.join(name).display());
        return;
    }
    let removed = Folder::open(&boot).and_then(|folder| {
        file::sweep(&folder)?;
        remove_all(&folder, OsStr::new(name))
    });
    match removed {
        Ok(()) => tracing::info!("removed {}", boot.join(name).display()),
        Err(e) => tracing::warn!("cannot remove {}: {e}", boot.join(name).display()),
    }
}

/// Innermost first; a link is removed, not followed.
fn remove_all(folder: &Folder, name: &OsStr) -> io::Result<()> {
    match folder.entry(name)?.map(|e| e.kind) {
        None => Ok(()),
        Some(FileKind::File) => file::remove(folder, name).map(drop),
        Some(FileKind::Link | FileKind::Other) => {
            folder.unlink(name)?;
            folder.sync_folder()?;
            folder.flush()
        }
        Some(FileKind::Folder) => {
            let inner = folder.enter(name)?;
            file::sweep(&inner)?;
            for (below, _) in inner.list()? {
                // Another file may share its clusters.
                if !file::is_temporary(&below) {
                    remove_all(&inner, &below)?;
                }
            }
            file::remove_folder(folder, name)
        }
    }
}

/// Through links: on an encrypted disk `EFI` leads to the other boot partition.
fn place(paths: &Paths, folder: &str) -> Option<PathBuf> {
    resolve(paths, Path::new(folder)).ok().map(|p| paths.at(p)).filter(|p| p.is_dir())
}

fn cannot(what: &str, path: &Path, e: io::Error) -> Error {
    Error::new(Code::BootCopyFailed, format!("cannot {what} {}", path.display()))
        .object(path.display())
        .because(e)
}
