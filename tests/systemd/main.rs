//! What is said to systemd, logind and the journal, against stand-ins that answer, hang, refuse and go away.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod bus;
mod calls;
mod catalogue;
mod events;
mod journal;
mod kernel;
mod waits;

use std::process::{Child, Command, Stdio};

/// Set in the process that a test starts to be looked at from outside.
const CHILD: &str = "COPAL_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The test `name` of this program again, in a process of its own, where [`is_child`]; behind `before`, if any.
fn child(before: &[&str], name: &str) -> Command {
    let exe = std::env::current_exe().unwrap();
    let words = before.iter().map(Into::into).chain([exe.into_os_string()]).collect::<Vec<_>>();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args([name, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").stdin(Stdio::null());
    // Whoever counts the tests that passed would count it.
    command.stdout(Stdio::null());
    command
}

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
