//! `99-balena-bootloader`: selects a root for the balena bootloader.

use super::switch::{select, wanted};
use crate::boot_state::{Keep, balena, retire_others};
use crate::disk::Facts;
use crate::error::Result;
use crate::hooks::Context;

/// The selection, then the files of U-Boot and an old GRUB go. They would be found first; but until the new file is on the medium,
/// theirs is the selection.
///
/// # Errors
/// `BootStateUnwritable`, `BootStateInvalid`, `SlotUnknown`, `SlotSame`.
pub(super) fn run(context: &Context) -> Result<()> {
    let facts = Facts::gather(&context.paths)?;
    let root = wanted(context, &facts)?;
    select(context, balena(&context.paths)?.as_ref(), &root)?;
    retire_others(&context.paths, Keep::Balena)
}
