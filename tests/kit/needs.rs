//! What a test needs of the machine it runs on.
#![allow(dead_code)] // no test program uses all of it

use std::path::Path;

/// Whether this process may make loop devices and mounts; says so where it may not.
pub fn can_run(test: &str) -> bool {
    let why = if !nix::unistd::geteuid().is_root() {
        "needs root"
    } else if !Path::new("/dev/loop-control").exists() {
        "needs loop devices"
    } else {
        return true;
    };
    eprintln!("not run: {test}: {why}");
    false
}

/// Whether a program is installed; says so where it is not.
pub fn has(test: &str, program: &str) -> bool {
    let found =
        std::env::var_os("PATH").is_some_and(|p| std::env::split_paths(&p).any(|d| d.join(program).exists()));
    if !found {
        eprintln!("not run: {test}: needs {program}");
    }
    found
}

/// Whether this process is root; says so where it is not.
pub fn is_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("not run: {test}: needs root");
    }
    root
}
