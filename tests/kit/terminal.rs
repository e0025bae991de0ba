//! What a program shows on a terminal.
#![allow(dead_code)] // no test program uses all of it

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

/// Of the labels before a text.
const LABEL_COLUMNS: usize = 11;

pub const WIDTHS: [u16; 3] = [80, 40, 20];

/// What a terminal of so many columns shows of a program that succeeds.
#[track_caller]
pub fn shown(columns: u16, environment: &[(&str, &str)], argv: &[&str]) -> String {
    let out = on_terminal(columns, environment, argv);
    let text = String::from_utf8(out.stdout).unwrap().replace("\r\n", "\n");
    assert!(out.status.success(), "{argv:?}: {text}");
    assert!(!text.contains(['\u{1b}', '\r']), "{argv:?}: {text:?}");
    text
}

/// What a program prints without a terminal; it is the same on one of 80 columns and, there, with `NO_COLOR`.
#[track_caller]
pub fn printed(argv: &[&str]) -> String {
    let out =
        Command::new(argv[0]).args(&argv[1..]).env_remove("COPAL_LOG").stdin(Stdio::null()).output().unwrap();
    let (text, warnings) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success() && warnings.is_empty(), "{argv:?}: {warnings}");
    for environment in [&[][..], &[("NO_COLOR", "1")]] {
        assert_eq!(shown(80, environment, argv), text, "{argv:?} {environment:?}");
    }
    text
}

/// Asserts that no line fills the terminal, except with one word, which may follow a label.
#[track_caller]
pub fn assert_fits(text: &str, columns: u16) {
    for line in text.lines() {
        let fits = line.chars().count() < usize::from(columns);
        let (before, _) = line.rsplit_once(' ').unwrap_or_default();
        let is_label = before.len() <= LABEL_COLUMNS && !before.trim_end().contains("  ");
        assert!(fits || is_label, "{columns} columns: {line:?}");
    }
}
