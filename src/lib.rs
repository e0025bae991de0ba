//! copal: the on-device flasher and host OS update agent for balenaOS.
//!
//! The dependency direction is `main → applet → flasher → {config, device, flash_device, partition} → sys`, with [`error`] below all of them.

pub mod applet;
pub mod cli;
pub mod config;
pub mod device;
pub mod error;
pub mod flash_device;
pub mod flasher;
pub mod partition;
pub mod sys;
