//! Which disk may be erased: on made-up machines and on loop devices of this one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit"]
mod kit {
    pub mod disk;
    pub mod needs;
    pub mod tree;
}

mod loops;
mod sysfs;
