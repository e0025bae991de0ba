//! Waiting for the end of a program, not for ever.
#![allow(dead_code)] // no test program uses all of it

use std::process::{Child, Output};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything here takes, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(300);

/// Waits for the end of a program, and fails with its output when it does not come.
pub fn wait(child: Child) -> Output {
    let id = i32::try_from(child.id()).unwrap();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if waiting.recv_timeout(LIMIT).is_err() {
            kill_tree(id);
            return true;
        }
        false
    });
    let out = child.wait_with_output().unwrap();
    // It may have waited long enough.
    let _late = done.send(());
    assert!(!watchdog.join().unwrap(), "it did not end: {}", String::from_utf8_lossy(&out.stderr));
    out
}

/// Kills a program with all that it has started: they hold its pipes open.
fn kill_tree(id: i32) {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    children.split_whitespace().for_each(|child| kill_tree(child.parse().unwrap()));
    // It may have ended just now.
    let _gone = kill(Pid::from_raw(id), Signal::SIGKILL);
}

/// Ends a process with the test.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
