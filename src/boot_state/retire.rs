//! Removes the files of backends that a device no longer has: detection would find them first.

use std::io;

use super::{balena, change, grub, uboot, unwritable};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::sys::file::{self, Folder};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    UbootOrGrub,
    Balena,
}

/// Removes the files of other backends at the top of the boot partition, durably: with [`Keep::Balena`] `resinOS_uEnv.txt` and a
/// `grubenv` (never one in GRUB's folder), with [`Keep::UbootOrGrub`] a `bootenv`. To be called after the selection of the backend in
/// use is on the medium.
pub fn retire_others(paths: &Paths, keep: Keep) -> Result<()> {
    let boot = paths.plain_boot();
    let names: &[&str] = match keep {
        Keep::Balena => &[uboot::UENV_FILE, grub::GRUBENV_FILE],
        Keep::UbootOrGrub => &[balena::BOOTENV_FILE],
    };
    for name in names {
        retire(&boot, name).map_err(|e| unwritable(&boot.join(name)).because(e))?;
    }
    Ok(())
}

fn retire(boot: &std::path::Path, name: &str) -> io::Result<()> {
    let folder = Folder::open(boot)?;
    let known = change::find(&folder, name)?;
    if known.is_none() && file::current_content(&folder, name.as_ref())?.is_none() {
        return Ok(());
    }
    file::sweep(&folder)?;
    if file::remove(&folder, &known.unwrap_or_else(|| name.into()))? {
        tracing::info!(
            "removed {}, which this device's bootloader does not read any more",
            boot.join(name).display()
        );
    }
    Ok(())
}
