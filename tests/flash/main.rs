//! The real binary on real block devices and files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]
#![allow(clippy::cast_possible_truncation)]

#[path = "../kit"]
mod kit {
    pub mod cgroup;
    pub mod disk;
    pub mod needs;
    pub mod process;
    pub mod prove;
    pub mod storage_daemon;
    pub mod terminal;
}

mod changes;
mod faults;
mod hold;
mod images;
mod kill;
mod outputs;
mod plain_files;
mod refusals;
mod signals;
mod signatures;
mod support;
mod terminal;
mod threads;
mod write;
