//! The pretended container engine of the tests as a program: `stub_engine SOCKET SCRIPT`, `SCRIPT` being a JSON file as
//! `tests/kit/stub_engine.rs` describes it. It serves until it is killed, and goes on where it was when started again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::path::PathBuf;

#[path = "../tests/kit/stub_engine.rs"]
mod stub_engine;

fn main() {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [socket, script] = words.as_slice() else { panic!("usage: stub_engine SOCKET SCRIPT") };
    let script = serde_json::from_slice(&std::fs::read(script).unwrap()).unwrap();
    stub_engine::run(socket, script);
}
