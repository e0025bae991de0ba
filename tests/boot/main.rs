//! What a device boots by: files on its boot partition, the boot state, the bootloader binaries outside file systems.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod alone;
    pub mod device_tree;
    pub mod disk;
    pub mod files;
    pub mod let_go;
    pub mod log;
    pub mod needs;
    pub mod process;
    pub mod prove;
    pub mod tree;
}

mod carry;
mod device_tree;
mod fat;
mod fatrw;
mod files;
mod journal;
mod loader;
mod slots;
mod state;
mod tree_blob;
