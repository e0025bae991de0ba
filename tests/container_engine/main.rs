//! The client of the container engine: against one that misbehaves as told, and against a real one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

#[path = "../common/dockerd.rs"]
mod dockerd;
#[path = "../common/image_archive.rs"]
mod image_archive;
#[path = "../common/needs.rs"]
mod needs;
#[path = "../common/old_kernel.rs"]
mod old_kernel;
#[path = "../common/registry.rs"]
mod registry;
#[path = "../common/stub_engine.rs"]
mod stub_engine;

mod archives;
mod bombs;
mod calls;
mod distribution;
mod interrupts;
mod progress;
mod pulls;
mod real;
