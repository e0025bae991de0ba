//! The verdict on an update: the trial of the new system, and the way back to the old one.

pub mod check_version;
pub mod checks;
pub mod chroot;
pub mod clear_bootcount;
pub mod kernel_override;
pub mod state_probe;
pub mod stop;
