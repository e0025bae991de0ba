pub mod compare;
pub mod events;
pub mod former;
pub mod job;
pub mod plan;
pub mod receipt;
pub mod watch;
pub mod write;
