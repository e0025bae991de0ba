//! Updates of a whole device, with a real container engine.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod added;
    pub mod dbus;
    pub mod device_tree;
    pub mod image_archive;
    pub mod log;
    pub mod needs;
    pub mod old_kernel;
    pub mod process;
    pub mod prove;
    pub mod stub_engine;
}

mod copal;
mod device_trees;
mod environment;
mod failures;
mod hard_places;
mod history;
mod image;
mod image_build;
mod interrupted;
mod kills;
mod layout;
mod mixed;
mod old_system;
mod own_hooks;
mod refusals;
mod rig;
mod safe_reboot;
mod signals;
mod test_suite;
