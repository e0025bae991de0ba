//! copal on whole virtual machines: kernels with vfat, MTD and eMMC, disks that are powered off, a system with systemd.
//!
//! `qemu/README.md` tells how they are made. Without what they need, each test says `not run:` and why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "../kit"]
mod kit {
    pub mod emulated_tpm;
    pub mod needs;
    pub mod prepared;
    pub mod prove;
    pub mod schema;
}

mod bootloader;
mod bootpart;
mod encrypted;
mod flash_chips;
mod flasher;
mod hooks;
mod jobs;
mod migration;
mod recovery;
mod rollback;
mod sandbox;
mod screen;
mod secure_boot;
mod smoke;
mod support;
mod system;
mod unlock;
