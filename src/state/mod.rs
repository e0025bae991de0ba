//! Where a device stands in an update, and what is kept of it: the phase, the state files it is derived from, and the history.

pub mod files;
pub mod history;
pub mod phase;
