//! The operating system, and nothing of ours: the only place with `unsafe`.

pub mod block;
pub mod buffer;
pub mod command;
pub mod log;
pub mod loopdev;
pub mod mount;
pub mod output;
pub mod terminal;
