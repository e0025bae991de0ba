//! Writes the manual pages and the completions of a release: `pages FOLDER` makes `FOLDER/man` and `FOLDER/completions`.
//!
//! `./dev build` runs it. They are made of the definitions of the command lines, on the machine that builds.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use copal::boot_files::fatrw;
use copal::cli;
use copal::hooks::legacy;

const VERSION: &str = concat!("copal ", env!("CARGO_PKG_VERSION"));

/// The pages of a command and of everything below it, by path.
fn manual(command: Command, into: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    add_pages(&command, into)
}

fn add_pages(command: &Command, into: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        add_pages(sub, into)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    into.insert(format!("man/{name}.1"), page(command)?);
    Ok(())
}

/// The page of a built command, which has its whole name.
fn page(command: &Command) -> std::io::Result<String> {
    // Without a date the page is the same whenever it is made. An empty date would not count as a word.
    let man = Man::new(command.clone()).date(" ").source(VERSION).manual("copal");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    out.extend(synopsis(command).to_roff().into_bytes());
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut text = String::from_utf8_lossy(&out).into_owned();
    if let Some(end) = command.get_after_help() {
        text += &sections(&end.to_string()).to_roff();
    }
    Ok(text)
}

/// How to call it, with the values of options: clap_mangen leaves them out.
fn synopsis(command: &Command) -> Roff {
    let groups: Vec<_> = command.get_groups().filter(|g| g.is_required_set()).collect();
    let in_a_group = |arg: &Arg| groups.iter().any(|g| g.get_args().any(|id| id == arg.get_id()));
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !in_a_group(arg);
    let is_help =
        |arg: &Arg| matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong);
    let mut words = vec![vec![bold(command.get_bin_name().unwrap_or(command.get_name()))]];
    for group in &groups {
        let members = command.get_arguments().filter(|a| group.get_args().any(|id| id == a.get_id()));
        let members: Vec<_> = members.map(call).collect();
        words.push([vec![roman("(")], members.join(&roman(" | ")), vec![roman(")")]].concat());
    }
    let options = command.get_arguments().filter(|a| !a.is_positional() && !is_help(a)).filter(is_shown);
    for arg in options.chain(command.get_positionals().filter(is_shown)) {
        words.push(match arg.is_required_set() {
            true => call(arg),
            false => [vec![roman("[")], call(arg), vec![roman("]")]].concat(),
        });
    }
    if command.has_subcommands() {
        words.push(vec![italic("COMMAND")]);
    }
    let mut page = Roff::default();
    page.control("SH", ["SYNOPSIS"]);
    page.text(words.join(&roman(" ")));
    page
}

/// An option with its value, or an argument.
fn call(arg: &Arg) -> Vec<Inline> {
    let names = arg.get_value_names().unwrap_or_default();
    let value = names.iter().map(clap::builder::Str::as_str).collect::<Vec<_>>().join(" ");
    let long = arg.get_long().map(|long| format!("--{long}"));
    let Some(option) = long.or_else(|| arg.get_short().map(|short| format!("-{short}"))) else {
        return vec![italic(value)];
    };
    if !arg.get_action().takes_values() {
        return vec![bold(option)];
    }
    match arg.get_num_args().is_some_and(|n| n.min_values() == 0) {
        true => vec![bold(option), roman("[="), italic(value), roman("]")],
        false => vec![bold(option), roman(" "), italic(value)],
    }
}

/// The command without what help does not list. clap has no way to take an option out of a command.
fn listed(command: &Command) -> Command {
    let text = |text: &str| -> &'static str { String::leak(text.to_owned()) };
    let mut listed = Command::new(text(command.get_name())).version(command.get_version().map(text));
    if let Some(about) = command.get_about() {
        listed = listed.about(about.clone());
    }
    listed
        .args(command.get_arguments().filter(|a| !a.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|s| !s.is_hide_set()).map(self::listed))
}

/// The sections after the options: each paragraph of the help's end is one, each line of it a line of the page.
fn sections(text: &str) -> Roff {
    let mut page = Roff::default();
    for paragraph in text.split("\n\n") {
        let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        let heading = first.strip_suffix(':').filter(|h| h.split(' ').count() < 3);
        page.control("SH", [heading.map_or_else(|| "NOTES".to_owned(), str::to_uppercase).as_str()]);
        if heading.is_some() {
            page.control("nf", []);
        }
        for line in if heading.is_some() { rest } else { paragraph }.lines() {
            page.text([roman(line)]);
        }
        if heading.is_some() {
            page.control("fi", []);
        }
    }
    page
}

/// The page of a program whose command line has no definition but its help.
fn page_of_help(name: &str, about: &str, help: &str) -> String {
    let (usage, rest) = help.split_once("\n\n").unwrap_or((help, ""));
    let options = usage.strip_prefix(&format!("Usage: {name} ")).unwrap_or(usage);
    let mut page = Roff::default();
    page.control("TH", [name, "1", " ", VERSION, "copal"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {about}"))]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([bold(name), roman(format!(" {options}"))]);
    page.control("SH", ["DESCRIPTION"]);
    page.control("nf", []);
    for line in rest.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
    page.to_roff()
}

/// Every page and completion script, by its path in a release.
pub(crate) fn all() -> std::io::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    manual(cli::command(), &mut all)?;
    manual(fatrw::command(), &mut all)?;
    let name = "hostapp-update-hooks";
    all.insert(format!("man/{name}.1"), page_of_help(name, "run the hooks of host OS updates", legacy::HELP));
    for (shell, file) in [(Shell::Bash, "copal.bash"), (Shell::Zsh, "_copal"), (Shell::Fish, "copal.fish")] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut listed(&cli::command()), "copal", &mut script);
        all.insert(format!("completions/{file}"), String::from_utf8_lossy(&script).into_owned());
    }
    Ok(all)
}

/// Writes them below `folder`, in place of those that an earlier program left there.
pub(crate) fn write(folder: &Path) -> std::io::Result<()> {
    for part in ["man", "completions"] {
        let part = folder.join(part);
        if part.exists() {
            fs::remove_dir_all(&part)?;
        }
        fs::create_dir_all(part)?;
    }
    all()?.iter().try_for_each(|(path, text)| fs::write(folder.join(path), text))
}

#[allow(dead_code)] // tests/release is another user of this file
fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: pages FOLDER")?;
    Ok(write(&folder)?)
}
