//! `99-balena-bootloader`: selects a root for the balena bootloader.

use super::switch::{root_to_select, select};
use crate::boot_state::{Keep, balena, retire_others};
use crate::disk::Facts;
use crate::error::Result;
use crate::hooks::Context;

/// Selects first, then removes the files of U-Boot and of an old GRUB: they are found first, and they have the selection until the
/// new file is on the medium.
pub(super) fn run(context: &Context) -> Result<()> {
    let facts = Facts::gather(&context.paths)?;
    let root = root_to_select(context, &facts)?;
    select(context, balena(&context.paths)?.as_ref(), &root)?;
    retire_others(&context.paths, Keep::Balena)
}
