//! copal on whole virtual machines: kernels with vfat, MTD and eMMC, disks that are powered off, a system with systemd.
//!
//! `qemu/README.md` tells how they are made. Without what they need, each test says `not run:` and why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "../kit"]
mod kit {
    pub mod prove;
}

mod bootloader;
mod bootpart;
mod flash_chips;
mod flasher;
mod hooks;
mod jobs;
mod migration;
mod rollback;
mod sandbox;
mod screen;
mod smoke;
mod support;
mod system;
