//! Bootloader writes: in memory with power cuts, in a made-up sysfs, on loop devices, and by the program.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

mod disk;
mod medium;
mod power;
mod program;
#[path = "../target_loop/rig.rs"]
#[allow(dead_code)]
mod rig;
mod tree;
