//! The small programs around a rollback: what they read, write, print and refuse; the shell files and units that start them.

mod check_version;
mod clear_bootcount;
mod device;
mod parse_bootloader;
mod program;
mod shim;
mod state_probe;
mod stop;
mod units;
