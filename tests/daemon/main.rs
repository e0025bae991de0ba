//! The D-Bus service, called by programs that are not ours, on a bus of the tests' own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod bus;
mod files;
mod flood;
mod interface;
mod jobs;
mod life;
#[path = "../common/mount_namespace.rs"]
mod mount_namespace;
#[path = "../common/old_kernel.rs"]
mod old_kernel;
