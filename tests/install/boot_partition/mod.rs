//! The internal boot partition: what is put there, what is refused, and what is left when a step fails.
//!
//! `tests/guest/bootpart.rs` has the same on a real vfat, with the power going at every moment.

mod confinement;
mod contents;
mod cuts;
mod golden;
mod leftovers;
mod mounting;
mod owner;
mod replace;
mod space;
mod support;
