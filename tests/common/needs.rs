//! What a test needs of the machine it runs on.

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
