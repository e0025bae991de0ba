//! The real binary on real block devices and files.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]
#![allow(clippy::cast_possible_truncation)]

#[path = "../common/daemon.rs"]
mod daemon;
mod faults;
mod images;
mod kill;
mod refusals;
mod support;
