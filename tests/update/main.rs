//! Updates of a whole device, with a real container engine.
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
mod copal;
#[path = "../common/ended.rs"]
mod ended;
mod environment;
mod failures;
mod hard_places;
mod history;
mod image;
#[path = "../common/image_archive.rs"]
mod image_archive;
mod image_build;
mod interrupted;
mod layout;
mod mixed;
#[path = "../common/old_kernel.rs"]
mod old_kernel;
mod old_system;
mod own_hooks;
mod refusals;
mod rig;
mod signals;
mod test_suite;

/// What a rollback does on the devices: no test, but a program that one runs.
#[test]
#[ignore = "a program that other tests start"]
fn old_hooks() {
    old_system::act();
}
