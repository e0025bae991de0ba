//! Bootloader writes: in memory with power cuts, in a made-up sysfs, on loop devices, and by the program.

mod disk;
mod medium;
mod power;
mod program;
mod tree;
