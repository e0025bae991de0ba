//! Hooks of host OS updates: which run, in which order, what they find, and what their failure means.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "../common/added.rs"]
mod added;
mod environment;
mod flash_bootloader;
mod generated;
#[path = "../common/needs.rs"]
#[allow(unreachable_pub)]
mod needs;
mod order;
mod place;
mod program;
mod runner;
mod support;
