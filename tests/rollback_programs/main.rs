//! The small programs around a rollback: what they read, write, print and refuse; the shell files and units that start them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "../common/mount_namespace.rs"]
mod mount_namespace;
#[path = "../common/stub_engine.rs"]
mod stub_engine;
#[path = "../common/tree.rs"]
mod tree;

mod check_version;
mod clear_bootcount;
mod device;
mod parse_bootloader;
mod program;
mod shim;
mod state_probe;
mod stop;
mod units;
