//! The built-in hooks: what they make of a device, and what a cut leaves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod bios;
mod crash;
mod data;
mod golden;
mod keys;
mod machine;
#[path = "../common/needs.rs"]
#[allow(unreachable_pub)]
mod needs;
mod refusals;
#[path = "../common/tree.rs"]
mod tree;
