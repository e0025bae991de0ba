//! Updates that are handed to the daemon, against a stand-in for it and against the real one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

#[path = "../common/ended.rs"]
mod ended;
mod engine;
mod followed;
#[path = "../common/image_archive.rs"]
mod image_archive;
mod own_process;
mod place;
mod served;
mod stand_in;
#[path = "../common/stub_engine.rs"]
mod stub_engine;
