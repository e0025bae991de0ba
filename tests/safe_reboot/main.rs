//! The reboot that waits for the locks of services. Nothing here can end this machine: the ways to do so are stand-ins, or stand in a
//! process namespace of their own without `/proc`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

#[allow(dead_code)]
#[path = "../systemd/bus.rs"]
mod bus;
#[allow(dead_code, unreachable_pub)]
#[path = "../programs/support.rs"]
mod support;

mod locks;
mod program;
mod shutdown_methods;

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

/// Whether this process is root; says so where it is not.
fn is_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("not run: {test}: needs root");
    }
    root
}
