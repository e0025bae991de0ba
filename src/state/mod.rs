//! The phase of a device, the state files that it is derived from, and the history.

pub mod files;
pub mod history;
pub mod phase;
