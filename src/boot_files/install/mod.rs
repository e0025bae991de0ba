//! The internal boot partition: what goes there, whether it may and whether it fits, and putting it there.
//!
//! [`Contents::gather`] decides, [`Contents::check`] refuses, [`Contents::deploy`] does. See `docs/boot-partition.md`.

pub use crate::boot_files::Destination;

mod check;
mod contents;
mod deploy;
mod partition;

pub use contents::{Action, Contents, Install, Item, SourceFile};
pub use deploy::{Deployed, put};
pub use partition::{BootPartition, POINT};
