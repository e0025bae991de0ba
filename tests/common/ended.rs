//! Waiting for the end of a program, not for ever.
#![allow(unreachable_pub)]

use std::process::{Child, Output};
use std::time::Duration;

/// Longer than anything here takes, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(300);

/// Waits for the end of a program, and fails with its output when it does not come.
pub fn wait(child: Child) -> Output {
    let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if waiting.recv_timeout(LIMIT).is_err() {
            nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGKILL).unwrap();
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
