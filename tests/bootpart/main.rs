//! The internal boot partition: what is put there, what is refused, and what is left when a step fails.
//!
//! `tests/guest/bootpart.rs` has the same on a real vfat, with the power going at every moment.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod confinement;
mod contents;
mod golden;
mod leftovers;
#[allow(unreachable_pub)]
#[path = "../common/let_go.rs"]
mod let_go;
mod mounting;
mod owner;
mod replace;
mod space;
mod support;
