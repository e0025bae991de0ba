//! Control groups that bound the number of processes and threads, gone when a test ends.
#![allow(dead_code)] // no test program uses all of it

use crate::kit::needs::not_run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Version 1 has a hierarchy of its own for this controller; in version 2 the top must give it to its children.
fn top() -> Option<&'static Path> {
    let (v1, v2) = (Path::new("/sys/fs/cgroup/pids"), Path::new("/sys/fs/cgroup"));
    let given = fs::read_to_string(v2.join("cgroup.subtree_control")).unwrap_or_default();
    if v1.join("cgroup.procs").exists() {
        Some(v1)
    } else {
        given.split_whitespace().any(|controller| controller == "pids").then_some(v2)
    }
}

pub struct Pids(PathBuf);

impl Pids {
    /// `None`, and a line that says so, where such a group cannot be made.
    pub fn new(test: &str) -> Option<Pids> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Some(top) = top() else {
            not_run(test, "needs the pids controller of control groups");
            return None;
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = top.join(format!("copal-test-{}-{number}", std::process::id()));
        if let Err(e) = fs::create_dir(&folder) {
            not_run(test, &format!("needs to make a control group: {e}"));
            return None;
        }
        Some(Pids(folder))
    }

    /// From now on no more than so many; those that are there stay.
    pub fn limit(&self, most: &str) {
        fs::write(self.0.join("pids.max"), most).unwrap();
    }

    pub fn now(&self) -> String {
        fs::read_to_string(self.0.join("pids.current")).unwrap().trim().to_owned()
    }

    /// A command that runs `program` in the group: the shell enters it, and becomes the program.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        let enter = format!("echo $$ >{}/cgroup.procs && exec \"$0\" \"$@\"", self.0.display());
        command.args(["-c", &enter, program]);
        command
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        // The last process is still leaving.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("cannot clean up {}", self.0.display());
    }
}
