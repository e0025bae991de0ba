//! Verdicts on a system on trial, and the ways back, in virtual time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod added;
    pub mod dbus;
    pub mod device_tree;
    pub mod disk;
    pub mod log;
    pub mod mount_namespace;
    pub mod needs;
    pub mod process;
    pub mod schema;
    pub mod stub_engine;
    pub mod tree;
}

mod by_hand;
mod damaged;
mod field;
mod health_checks;
mod history;
mod no_other_root;
mod old_hooks;
mod programs;
mod rig;
mod verdicts;
