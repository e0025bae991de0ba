//! The hook `1-bootfiles`: a release and a boot partition in, a boot partition out; what is refused, what a cut leaves, what an
//! undo gets through, and the shell file in front of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

#[path = "../common/files.rs"]
mod files;
#[path = "../common/needs.rs"]
mod needs;
#[path = "../common/tree.rs"]
mod tree;

mod encrypted;
mod faults;
mod golden;
mod shim;
mod space;
mod special;
mod support;
