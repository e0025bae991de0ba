//! `99-resin-uboot`: selects a root for U-Boot.

use super::switch::{root_to_select, select};
use crate::boot_state::{Keep, retire_others, uboot};
use crate::disk::Facts;
use crate::error::Result;
use crate::hooks::Context;

/// Selects first, then removes the file of the balena bootloader, which a release with U-Boot does not read.
pub(super) fn run(context: &Context) -> Result<()> {
    let facts = Facts::gather(&context.paths)?;
    let root = root_to_select(context, &facts)?;
    select(context, uboot(&context.paths)?.as_ref(), &root)?;
    retire_others(&context.paths, Keep::UbootOrGrub)
}
