//! Updates of the host OS.

pub mod archive;
pub mod credentials;
pub mod current;
pub mod engine;
pub mod hooks;
pub mod lock;
pub mod mounted_root;
pub mod preflight;
pub mod safe_reboot;
pub mod snapshot;
pub mod status;
pub mod sysroot;
pub mod undo;
pub mod update;
