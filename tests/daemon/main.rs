//! The D-Bus service, called by programs that are not ours, on a bus of the tests' own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod cgroup;
    pub mod dbus;
    pub mod image_archive;
    pub mod mount_namespace;
    pub mod needs;
    pub mod old_kernel;
    pub mod process;
    pub mod prove;
    pub mod stub_engine;
    pub mod systemd;
}

mod bus;
mod client;
mod files;
mod flood;
mod interface;
mod jobs;
mod life;
mod systemd;
