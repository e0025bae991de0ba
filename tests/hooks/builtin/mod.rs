//! The built-in hooks: what they make of a device, and what a cut leaves.

mod bios;
mod carry;
mod crash;
mod data;
mod golden;
mod keys;
mod machine;
mod refusals;
