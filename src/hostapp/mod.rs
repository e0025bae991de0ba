//! Updates of the host OS.

pub mod current;
pub mod hooks;
