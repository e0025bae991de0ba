//! Verdicts on a system on trial, and the ways back, in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod by_hand;
mod field;
mod no_other_root;
mod rig;
#[path = "../common/tree.rs"]
mod tree;
mod verdicts;
