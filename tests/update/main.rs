//! Updates of a whole device, with a real container engine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub
)]

mod copal;
mod failures;
mod history;
mod image;
mod layout;
mod mixed;
mod own_hooks;
mod refusals;
mod rig;
mod signals;
