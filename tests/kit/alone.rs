//! Tests in a process of their own: for its environment, its signals, its log, its memory, and the descriptors that other tests' children would have.
#![allow(dead_code)] // no test program uses all of it

use std::ffi::OsStr;
use std::process::Command;

const ALONE: &str = "COPAL_TEST_ALONE";

/// Whether this is such a process, in which a test does its work.
pub fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs the test once more in a process of its own, with this environment, and returns what it printed. It has passed.
pub fn in_own_process(test: &str, environment: &[(&str, &str)]) -> String {
    in_own_process_below(&[], test, environment)
}

/// The same, started by the program with these arguments.
pub fn in_own_process_below(starter: &[&str], test: &str, environment: &[(&str, &str)]) -> String {
    let own = std::env::current_exe().unwrap();
    let mut words: Vec<&OsStr> = starter.iter().map(OsStr::new).collect();
    words.push(own.as_os_str());
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["--exact", test, "--nocapture"]);
    for variable in ["DOCKER_CONFIG", "HOME", "COPAL_LOG"] {
        command.env_remove(variable);
    }
    let output = command.env(ALONE, "1").envs(environment.iter().copied()).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text
}
