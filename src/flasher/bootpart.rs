//! The internal boot partition: what goes there, whether it may and whether it fits, and putting it there.
//!
//! [`Contents::gather`] decides, [`Contents::check`] refuses, [`Contents::deploy`] does. See `docs/boot-partition.md`.

mod check;
mod contents;
mod deploy;
mod destination;
mod partition;
mod space;

pub use contents::{Action, Contents, Install, Item, SourceFile};
pub use deploy::{Deployed, put};
pub use destination::Destination;
pub use partition::{BootPartition, POINT};
