//! The internal boot partition: [`Contents::gather`] plans, [`Contents::check`] refuses, [`Contents::deploy`] writes.
//! See `docs/boot-partition.md`.

pub use crate::boot_files::Destination;

mod check;
mod contents;
mod deploy;
mod partition;

pub use contents::{Action, Contents, Files, Install, Item, SourceFile};
pub use deploy::put;
pub use partition::{BootPartition, POINT};
