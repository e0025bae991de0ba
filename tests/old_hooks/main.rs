//! Going back: the hooks of the old system in its own root, with every mount undone whatever happens, and its kernel override.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

#[path = "../common/added.rs"]
mod added;
#[path = "../common/ended.rs"]
mod ended;
mod ends;
mod failures;
mod kernel;
#[path = "../common/needs.rs"]
mod needs;
mod place;
mod rig;

/// What a rollback does in the rigs: no test, but a program that a device runs.
#[test]
#[ignore = "a program that other tests start"]
fn program() {
    rig::act();
}
