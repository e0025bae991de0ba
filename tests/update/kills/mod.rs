//! Updates that are killed after every single change of a file system, from the first to the last.
//!
//! Before the switch the running slot must be the one that boots, after it the new one on trial, never half of either; and the
//! next update must succeed from whatever was left, in the same boot and after a reboot.

mod always_read;
mod calls;
mod carried;
mod failures;
mod judge;
mod rig;
mod shim;
mod system;
mod tree;
mod updates;

/// The container engine of a device: no test, but a program that a device runs.
#[test]
#[ignore = "a program that other tests start"]
fn engine_program() {
    rig::serve();
}
