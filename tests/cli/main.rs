//! The program as it is called, what it reads of its configuration, and where it says that the device stands.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod device_tree;
    pub mod needs;
    pub mod process;
    pub mod terminal;
    pub mod tree;
}

mod config;
mod config_json;
mod device_trees;
mod doctor;
mod hostile;
mod job;
mod names;
mod status;
mod terminal;
mod usage;
