//! Boot state: the backends, their codecs, and what a power cut leaves of a change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod codecs;
mod cuts;
mod dialects;
mod grub_editenv;
#[allow(unreachable_pub)]
#[path = "../common/let_go.rs"]
mod let_go;
mod mutations;
#[allow(unreachable_pub)]
#[path = "../common/needs.rs"]
mod needs;
mod repair;
mod support;
mod variables;
