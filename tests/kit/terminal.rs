//! What a program shows on a terminal.

use std::process::{Command, Output, Stdio};

/// Runs it to its end, its output on a terminal of so many columns; lines there end with `\r\n`.
pub fn on_terminal(columns: u16, environment: &[(&str, &str)], argv: &[&str]) -> Output {
    let quoted: Vec<String> = argv.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    let run = format!("stty cols {columns} rows 24 && exec {}", quoted.join(" "));
    Command::new("timeout")
        .args(["300", "script", "-qec", &run, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .env_remove("COPAL_LOG")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}
