//! Updates that are killed after every single change of a file system, from the first to the last.
//!
//! Before the switch the running slot must be the one that boots, after it the new one on trial, never half of either; and the
//! next update must succeed from whatever was left, in the same boot and after a reboot.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

mod calls;
#[path = "../common/ended.rs"]
mod ended;
mod failures;
mod judge;
#[path = "../common/needs.rs"]
mod needs;
mod rig;
mod shim;
#[path = "../common/stub_engine.rs"]
mod stub_engine;
mod system;
mod tree;
mod updates;

/// The container engine of a device: no test, but a program that a device runs.
#[test]
#[ignore = "a program that other tests start"]
fn engine_program() {
    rig::serve();
}
