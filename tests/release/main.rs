//! What a release brings besides the program: the list of what goes where, manual pages, completions, the archive itself.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]
#![allow(unreachable_pub)]

mod archive;
mod boards;
mod commit;
mod contents;
mod help;
mod initramfs;
#[path = "../kit"]
mod kit {
    pub mod needs;
    pub mod prove;
}
mod layer;
mod manual;
#[path = "../../examples/pages.rs"]
mod pages;
mod recipe;
mod static_build;

use std::path::{Path, PathBuf};
use std::process::Command;

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What `copal …` prints; nothing where it fails.
fn said(words: &[&str]) -> Option<String> {
    let out = Command::new(env!("CARGO_BIN_EXE_copal")).args(words).output().unwrap();
    out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
}

/// The names of the files of a folder of the repository, in their order.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(top().join(folder))
        .unwrap_or_else(|e| panic!("{folder}: {e}"))
        .map(|entry| Path::new(folder).join(entry.unwrap().file_name()))
        .collect();
    all.sort();
    all
}
