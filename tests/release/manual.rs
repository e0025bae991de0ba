//! Manual pages and completions in the repository are those of the command line's definition.
//!
//! `COPAL_GENERATE=1 cargo test --test release manual` writes them anew. They are kept, so that whoever packs or installs a release
//! needs neither a compiler nor a program for his own machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Command;
use clap_mangen::roff::{Roff, bold, roman};

use crate::{files, said, top};

const VERSION: &str = concat!("copal ", env!("CARGO_PKG_VERSION"));

/// Lines as they are.
fn verbatim(page: &mut Roff, lines: &[&str]) {
    for line in lines {
        page.text([roman(*line)]);
    }
}

/// Pages of a command and of everything below it, by file name; `words` are what leads to it.
fn pages(command: &Command, words: &[&str], into: &mut BTreeMap<String, String>) {
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        pages(sub, &[words, &[sub.get_name()]].concat(), into);
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let page = said(&[&["man"], words].concat()).unwrap_or_else(|| panic!("no page of {words:?}"));
    into.insert(format!("man/{name}.1"), page);
}

/// A page for a program whose command line has no definition but its help.
fn page_of_help(name: &str, about: &str) -> String {
    let help = said(&[name, "--help"]).unwrap();
    let mut page = Roff::default();
    page.control("TH", [name, "1", " ", VERSION, "copal"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {about}"))]);
    page.control("SH", ["SYNOPSIS"]);
    let (usage, rest) = help.split_once("\n\n").unwrap();
    let options = usage.strip_prefix(&format!("Usage: {name} ")).unwrap();
    page.text([bold(name), roman(format!(" {options}"))]);
    page.control("SH", ["DESCRIPTION"]);
    page.control("nf", []);
    verbatim(&mut page, &rest.lines().collect::<Vec<_>>());
    page.control("fi", []);
    page.to_roff()
}

/// Everything that is generated, by its path in the repository.
fn generated() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (command, words) in
        [(copal::cli::command(), &[][..]), (copal::boot_files::fatrw::command(), &["fatrw"])]
    {
        let mut command = command.disable_help_subcommand(true);
        command.build();
        pages(&command, words, &mut all);
    }
    let name = "hostapp-update-hooks";
    all.insert(format!("man/{name}.1"), page_of_help(name, "run the hooks of host OS updates"));
    for (shell, file) in [("bash", "copal.bash"), ("zsh", "_copal"), ("fish", "copal.fish")] {
        all.insert(format!("completions/{file}"), said(&["completions", shell]).unwrap());
    }
    all
}

#[test]
fn pages_and_completions_are_those_of_the_program() {
    let wanted = generated();
    if std::env::var_os("COPAL_GENERATE").is_some() {
        for folder in ["man", "completions"] {
            std::fs::create_dir_all(top().join(folder)).unwrap();
            files(folder).iter().for_each(|file| std::fs::remove_file(top().join(file)).unwrap());
        }
        wanted.iter().for_each(|(file, text)| std::fs::write(top().join(file), text).unwrap());
    }
    let mut wrong = String::new();
    for (file, text) in &wanted {
        if std::fs::read_to_string(top().join(file)).ok().as_ref() != Some(text) {
            writeln!(wrong, "  {file}").unwrap();
        }
    }
    for file in ["man", "completions"].into_iter().flat_map(files) {
        if !wanted.contains_key(file.to_str().unwrap()) {
            writeln!(wrong, "  {} (of nothing)", file.display()).unwrap();
        }
    }
    assert!(
        wrong.is_empty(),
        "not those of this program; see tests/release/manual.rs how to write them:\n{wrong}"
    );
}

/// Every verb has a page with each of its options; the page says what the help says.
#[test]
fn pages_leave_nothing_out() {
    let all = generated();
    let plain =
        |text: &str| text.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "");
    for verb in copal::cli::verbs().iter().filter(|v| *v != "help") {
        let text = plain(&all[&format!("man/copal-{verb}.1")]);
        let help = said(&[verb, "--help"]).unwrap();
        for flag in help.split_whitespace().filter(|w| w.starts_with("--")) {
            let flag = flag.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let flag = flag.split(['=', '[', '.', ',']).next().unwrap();
            assert!(text.contains(flag), "{flag} in the page of {verb}");
        }
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            assert!(text.contains(&format!(".SH {heading}\n")), "{heading} in the page of {verb}");
        }
    }
    let flash = &all["man/copal-flash.1"];
    assert!(flash.contains(".SH EXAMPLES\n.nf\n") && flash.contains(".SH \"EXIT CODES\"\n.nf\n"), "{flash}");
    assert!(all.contains_key("man/fatrw-write.1") && all.contains_key("man/copal-rollback-health.1"));
}
