//! UEFI and measured boot: lists, programs and logs, compared with what other tools and real firmware have made.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[path = "../kit"]
mod kit {
    pub mod needs;
    pub mod prepared;
}

mod lists;
mod logs;
mod next_start;
mod programs;
mod release;
mod tools;
mod variables;
mod way;
