//! Help fits a terminal of 80 columns, and leaves nothing out.

use clap::{Arg, Command};
use copal::names::applets;

use crate::said;

const COLUMNS: usize = 80;

/// The command and everything below it, each with the words that lead to it.
fn all(command: &Command, words: &[String]) -> Vec<(Vec<String>, Command)> {
    let mut found = vec![(words.to_vec(), command.clone())];
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
        found.extend(all(sub, &[words, &[sub.get_name().to_owned()]].concat()));
    }
    found
}

/// Every command line that there is a definition of: the verbs of `copal`, and `fatrw`.
fn commands() -> Vec<(Vec<String>, Command)> {
    [all(&copal::cli::command(), &[]), all(&copal::boot_files::fatrw::command(), &["fatrw".to_owned()])]
        .concat()
}

fn too_long(text: &str) -> Vec<String> {
    text.lines().filter(|l| l.chars().count() > COLUMNS).map(str::to_owned).collect()
}

#[test]
fn no_line_of_help_is_longer_than_a_terminal() {
    let mut wrong = Vec::new();
    let mut look = |words: &[&str]| {
        let text = said(words).unwrap_or_else(|| panic!("{words:?} prints no help"));
        assert!(text.contains("Usage: "), "{words:?}: {text}");
        wrong.extend(too_long(&text).into_iter().map(|line| format!("{}: {line}", words.join(" "))));
    };
    for (words, _) in commands() {
        for flag in ["--help", "-h"] {
            let mut line: Vec<&str> = words.iter().map(String::as_str).collect();
            line.push(flag);
            look(&line);
        }
    }
    // Of the other names, those that have help.
    let mut others = 0;
    for applet in applets() {
        if said(&[applet.name, "--help"]).is_some() {
            others += 1;
            look(&[applet.name, "--help"]);
        }
    }
    assert!(others >= 8, "{others} names with help");
    assert!(wrong.is_empty(), "longer than {COLUMNS} columns:\n{}", wrong.join("\n"));
}

#[test]
fn a_long_line_would_be_noticed() {
    let line = "x".repeat(COLUMNS);
    assert!(too_long(&line).is_empty());
    assert_eq!(too_long(&format!("a\n{line}y\n")).len(), 1);
}

/// What has no word of help.
fn silent(words: &[String], command: &Command) -> Vec<String> {
    let mut found = Vec::new();
    if command.get_about().is_none_or(|a| a.to_string().trim().is_empty()) {
        found.push(words.join(" "));
    }
    let helpless = |arg: &&Arg| arg.get_help().is_none_or(|h| h.to_string().trim().is_empty());
    for arg in command.get_arguments().filter(helpless) {
        found.push(format!("{} {}", words.join(" "), arg.get_id()));
    }
    found
}

#[test]
fn the_program_says_in_one_sentence_what_it_is() {
    let about = copal::cli::command().get_about().map(ToString::to_string);
    assert_eq!(about.as_deref(), Some(env!("CARGO_PKG_DESCRIPTION")));
}

#[test]
fn every_verb_option_and_argument_has_help() {
    let commands = commands();
    assert!(commands.len() > 25, "{}", commands.len());
    let found: Vec<String> = commands.iter().flat_map(|(words, command)| silent(words, command)).collect();
    assert!(found.is_empty(), "without help:\n{}", found.join("\n"));
}

#[test]
fn a_missing_help_would_be_noticed() {
    let command = Command::new("x").about("says something").arg(Arg::new("dumb").long("dumb"));
    assert_eq!(silent(&["x".to_owned()], &command), ["x dumb"]);
    assert_eq!(silent(&["x".to_owned()], &Command::new("x")), ["x"]);
}
