//! Virtual machines for tests. Start with [`Guest::small`]; `qemu/README.md` has examples.

mod cpio;
mod guest;
mod host;
mod machine;
pub(crate) mod writelog;

pub(crate) use guest::{Disk, Guest};
pub(crate) use host::{copal, folder, tool};
pub(crate) use machine::{Ending, Outcome};
