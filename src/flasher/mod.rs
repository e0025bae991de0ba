//! The flasher: read the board's configuration, choose the target, write the image, prove that it is there.

pub mod board;
pub mod bootpart;
pub mod chunks;
pub mod compare;
pub mod digest;
pub mod ending;
pub mod image;
pub mod job;
pub mod plan;
pub mod plugin;
pub mod progress;
pub mod receipt;
mod shell;
pub mod target;
pub mod write;
