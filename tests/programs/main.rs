//! Programs of others: board programs, plug-ins, power-off helpers, the progress reporter. Real ones, in bash, below a
//! root folder of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod board;
mod command;
mod ending;
mod plugin;
mod progress;
mod support;
