//! What the pages promise, and the order of the source.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

mod architecture;
mod compatibility;
mod integrating;
#[path = "../kit"]
mod kit {
    pub mod needs;
}
mod links;
mod pages;
mod readme;
mod words;
