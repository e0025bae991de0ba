//! Updates of the host OS.

pub mod hooks;
