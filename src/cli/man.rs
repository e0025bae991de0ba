//! `copal man`: manual pages, made of the definition of the command line.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{Ui, args};
use crate::boot_files::fatrw;
use crate::error::{Code, Error, Result};

const VERSION: &str = concat!("copal ", env!("CARGO_PKG_VERSION"));

/// Prints the page of the command that `words` lead to: a verb, and one of a verb's own.
pub(super) fn run_man(words: &[String], ui: &Ui) -> Result<()> {
    let (root, words) = match words {
        [first, rest @ ..] if first == "fatrw" => (fatrw::command(), rest),
        _ => (args::command(), words),
    };
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let mut command = &root;
    for word in words {
        command = command.find_subcommand(word).filter(|c| !c.is_hide_set()).ok_or_else(|| {
            Error::new(Code::Usage, format!("there is no manual page of `{}`", words.join(" ")))
                .object(word)
                .with_hint("run `copal help`, or `man -l` with a page of the release")
        })?;
    }
    ui.text(&page(command).map_err(|e| Error::new(Code::OutputFailed, "cannot make the page").because(e))?);
    Ok(())
}

/// The page of a built command, which has its whole name. Without a date of its own, and an empty one would not count as a word.
fn page(command: &Command) -> std::io::Result<String> {
    let man = Man::new(command.clone()).date(" ").source(VERSION).manual("copal");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
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

/// The sections behind the options: each paragraph of the help's end, a line of it a line of the page.
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
