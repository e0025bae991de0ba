//! copal: the on-device flasher and host OS update agent for balenaOS.
//!
//! Modules from top to bottom; none uses one above it (`tests/docs/architecture.rs`): `names` · `cli` · `doctor`, `daemon`, `job_client` · `status`, `rollback` ·
//! `install`, `update` · `hooks` · `boot_files` · `flash`, `engine`, `state` · `boot_state`, `bootloader`, `device_tree`, `image`, `slot` · `disk`,
//! `progress` · `job` · `measurements`, `tpm`, `uefi` · `config`, `version` · `sys` · `error`.

pub mod boot_files;
pub mod boot_state;
pub mod bootloader;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod device_tree;
pub mod disk;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod flash;
pub mod hooks;
pub mod image;
pub mod install;
pub mod job;
pub mod job_client;
pub mod luks;
pub mod measurements;
pub mod names;
pub mod progress;
pub mod rollback;
pub mod signature;
pub mod slot;
pub mod state;
pub mod status;
pub mod sys;
pub mod tpm;
pub mod uefi;
pub mod unlock;
pub mod update;
pub mod version;
