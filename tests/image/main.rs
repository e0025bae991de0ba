//! Image files: finding, opening, decoding and inspecting them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

#[path = "../kit/prove.rs"]
mod prove;

mod bmap;
mod decode;
mod inspect;
mod signature;
mod support;
mod tables;
