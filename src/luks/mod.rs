//! Encrypted partitions and the passphrase that opens them.

pub mod header;
pub(crate) mod mapping;
pub(crate) mod passphrase;
pub(crate) mod recovery;
