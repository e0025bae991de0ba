//! An image onto a disk or into a file: plan it, write it, prove that it is there.

pub mod compare;
pub mod events;
pub mod job;
pub mod plan;
pub mod receipt;
pub mod watch;
pub mod write;
