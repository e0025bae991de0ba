//! Running programs, and waiting for them, not for ever.
#![allow(dead_code)] // no test program uses all of it

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything here takes, on a machine that has much else to do: what takes longer hangs.
pub const HANG: Duration = Duration::from_secs(300);

/// Copies copal to `to`, in another process: a program that a test beside this one starts would hold the copy open for writing for a moment, and it could not
/// be run then (ETXTBSY).
pub fn copy_of_copal(to: &Path) {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_copal")).arg(to).status().unwrap();
    assert!(copied.success(), "{}", to.display());
}

/// Waits for the end of a program, and fails with its output when it does not come.
pub fn wait(child: Child) -> Output {
    let id = i32::try_from(child.id()).unwrap();
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if waiting.recv_timeout(HANG).is_err() {
            kill_tree(id);
            return true;
        }
        false
    });
    let out = child.wait_with_output().unwrap();
    // It may have waited long enough.
    let _late = done.send(());
    assert!(!watchdog.join().unwrap(), "it did not end: {}", String::from_utf8_lossy(&out.stderr));
    assert_words(&String::from_utf8_lossy(&out.stderr));
    out
}

/// What this program says is words: no structure or variant of its source. It passes on lines of other programs, and debug lines are for
/// its authors.
#[track_caller]
pub fn assert_words(text: &str) {
    let is_own = |line: &str| {
        line.starts_with("copal: ") || ["[ERROR] ", "[WARN] ", "[INFO] "].iter().any(|l| line.contains(l))
    };
    for line in text.lines().filter(|line| is_own(line)) {
        let signs = [" { ", "Some(", "Ok(", "Err(", "None,", "None)"];
        let path = line.split("::").skip(1).any(|after| after.starts_with(|c: char| c.is_ascii_uppercase()));
        assert!(!path && !signs.iter().any(|sign| line.contains(sign)), "not in words: {line}");
    }
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

/// Runs a tool that must succeed; its standard output.
pub fn tool(argv: &[&str]) -> String {
    let out = Command::new(argv[0]).args(&argv[1..]).output().unwrap_or_else(|e| panic!("{argv:?}: {e}"));
    assert!(out.status.success(), "{argv:?}: {}", stderr(&out));
    stdout(&out)
}

pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

pub fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Waits until something is so, and fails if it never is.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + HANG;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `true`, a minute at most.
pub fn soon(mut is: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if is() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Whether a process with this number runs (a zombie does not).
pub fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|s| !s.contains(") Z "))
}

/// Writes a program. Another process does it: a descriptor that is open for writing in this one would be open for an instant in what
/// other tests start, and the kernel would not run the file (ETXTBSY).
pub fn program(path: &Path, text: &str, mode: &str) -> PathBuf {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let script = "printf %s \"$1\" >\"$0\" && chmod \"$2\" \"$0\"";
    let status = Command::new("sh").args(["-c", script]).arg(path).args([text, mode]).status().unwrap();
    assert!(status.success());
    path.to_owned()
}

/// A root folder with programs.
pub struct Root(tempfile::TempDir);

impl Root {
    pub fn new() -> Self {
        Root(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    /// A file with `text`, mode 0755.
    pub fn program(&self, path: &str, text: &str) -> PathBuf {
        program(&self.at(path), text, "755")
    }

    /// What the file holds; nothing where it is missing.
    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap_or_default()
    }
}
