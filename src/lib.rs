//! copal: the on-device flasher and host OS update agent for balenaOS.
//!
//! The dependency direction is `main → applet → cli → {flasher, hostapp} → {phase, boot_files, bootloader, config, device,
//! flash_device, partition, slot} → sys`, with [`error`] below all of them.
//! The dependency direction is `main → applet → cli → {flasher, hostapp, fatrw} → {phase, bootloader, config, device, flash_device,
//! partition, slot} → sys`, with [`error`] below all of them.

pub mod applet;
pub mod boot_files;
pub mod bootloader;
pub mod cli;
pub mod config;
pub mod device;
pub mod doctor;
pub mod error;
pub mod fatrw;
pub mod flash_device;
pub mod flasher;
pub mod hostapp;
pub mod partition;
pub mod phase;
pub mod report;
pub mod slot;
pub mod sys;
