//! Boot state: the dialects, their codecs, and what a power cut leaves of a change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod dialects;
mod support;
