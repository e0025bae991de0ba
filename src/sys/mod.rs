//! The operating system, and nothing of ours: the only place with `unsafe`.

pub mod block;
pub mod buffer;
pub mod command;
pub mod file;
pub mod log;
pub mod loopdev;
pub mod mount;
pub mod notify;
pub mod output;
pub mod power;
pub mod systemd;
pub mod mtd;
pub mod signal;
pub mod terminal;
pub mod uevent;
