//! The kernel that a slot was committed with (`kernel_override_abi`).

use crate::bootloader::Dialect;
use crate::config::paths::Paths;
use crate::slot::Slot;
/// stub
pub fn restore(_: &Paths, _: &dyn Dialect, _: Slot) {}
/// stub
pub fn commit(_: &Paths, _: &dyn Dialect, _: Slot) {}
