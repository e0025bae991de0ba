//! The client of the container engine: against one that misbehaves as told, and against a real one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod alone;
    pub mod dockerd;
    pub mod image_archive;
    pub mod needs;
    pub mod old_kernel;
    pub mod process;
    pub mod prove;
    pub mod registry;
    pub mod stub_engine;
}

mod archives;
mod bombs;
mod calls;
mod changes;
mod distribution;
mod interrupts;
mod lost_layers;
mod progress;
mod pulls;
mod real;
