//! What is said to systemd, logind and the journal, against stand-ins that answer, hang, refuse and go away.

mod calls;
mod catalogue;
mod events;
mod journal;
mod kernel;
mod waits;

use std::process::{Command, Stdio};

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
