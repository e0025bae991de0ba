//! Taking away the files of backends a device no longer has: they come first when a backend is looked for.

use std::io;

use super::{balena, change, grub, uboot, unwritable};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::sys::file::{self, Folder};

/// The backend that stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// U-Boot, or GRUB.
    UbootOrGrub,
    /// The balena bootloader.
    Balena,
}

/// Removes what other backends left at the top of the boot partition, durably: with [`Keep::Balena`] `resinOS_uEnv.txt` and a
/// `grubenv` (never one in a folder of GRUB), with [`Keep::UbootOrGrub`] a `bootenv`. To be called when the selection of the
/// backend that stays is on the medium.
///
/// # Errors
/// `BootStateUnwritable` when one of them cannot be removed.
pub fn retire_others(paths: &Paths, keep: Keep) -> Result<()> {
    let boot = paths.plain_boot();
    let names: &[&str] = match keep {
        Keep::Balena => &[uboot::FILE, grub::FILE],
        Keep::UbootOrGrub => &[balena::FILE],
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
