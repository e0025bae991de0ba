//! Virtual machines for tests. Start with [`Guest::small`]; `qemu/README.md` has examples.

mod cpio;
pub(crate) mod fat;
mod guest;
mod host;
mod machine;
pub(crate) mod medium;
mod monitor;
mod system;
mod turn;
pub(crate) mod writelog;

pub(crate) use guest::{Disk, Guest};
pub(crate) use host::{LIMIT, folder, not_run, part, tool};
pub(crate) use machine::{Outcome, Shutdown};
pub(crate) use monitor::{ALPHABET, Font};
pub(crate) use system::{System, fat_files, fat_image, gpt_image};
