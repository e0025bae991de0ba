//! What the Yocto layer makes of a build: its own Python, run without bitbake.

mod bills;
mod machines;
mod overrides;
mod replace;
mod reports;
mod update_conf;
mod upstream;

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What one of the programs in this folder answers for each case.
pub fn answers(program: &str, cases: &[Value]) -> Vec<Value> {
    let mut python = Command::new("python3")
        .arg("-B")
        .arg(format!("{}/tests/release/layer/{program}", env!("CARGO_MANIFEST_DIR")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(serde_json::to_string(cases).unwrap().as_bytes()).unwrap();
    let said = python.wait_with_output().unwrap();
    assert!(said.status.success(), "{program} failed");
    let answers: Vec<Value> = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(answers.len(), cases.len());
    answers
}
