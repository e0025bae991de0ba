//! Hooks of host OS updates: which run, in which order, what they find, and what their failure means.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod added;
    pub mod alone;
    pub mod device_tree;
    pub mod disk;
    pub mod log;
    pub mod needs;
    pub mod process;
    pub mod tree;
}

mod builtin;
mod environment;
mod flash_bootloader;
mod generated;
mod order;
mod place;
mod program;
mod runner;
mod support;
