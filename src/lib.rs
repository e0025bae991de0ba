//! copal: the on-device flasher and host OS update agent for balenaOS.
//!
//! The dependency direction is `main → applet → cli → doctor → {flasher, hostapp, rollback, daemon, fatrw} → report → {boot_files,
//! bootloader, config, device, flash_device, history, partition, phase, slot, version} → sys`, with [`error`] below all of them.

// What tests share names the crate as those outside of it do.
#[cfg(test)]
extern crate self as copal;
#[cfg(test)]
#[path = "../tests/common/tree.rs"]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
mod tree;

pub mod applet;
pub mod boot_files;
pub mod bootloader;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod device;
pub mod doctor;
pub mod error;
pub mod fatrw;
pub mod flash_device;
pub mod flasher;
pub mod history;
pub mod hostapp;
pub mod partition;
pub mod phase;
pub mod report;
pub mod rollback;
pub mod slot;
pub mod sys;
pub mod version;
