//! The health checks of a system on trial, below a root folder with programs and a systemd that are stand-ins.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[allow(dead_code)]
#[path = "../systemd/bus.rs"]
mod bus;
mod conf;
mod docs;
mod folders;
mod rig;
mod standard;
#[allow(dead_code)]
#[path = "../programs/support.rs"]
mod support;
mod units;

use std::process::Child;

/// Ends a process with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Whether a program is installed; says so where it is not.
fn has(test: &str, program: &str) -> bool {
    let found =
        std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()));
    if !found {
        eprintln!("not run: {test}: needs {program}");
    }
    found
}
