//! The history of updates: what is written is read again, whatever happens to the file, and nothing ever waits for it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod file;
mod journal;
mod kills;
#[path = "../common/needs.rs"]
mod needs;
mod partition;
mod record;
#[path = "../common/schema.rs"]
mod schema;
mod support;
#[path = "../common/tree.rs"]
mod tree;
mod view;
