//! The variables that a bootloader reads out of its file, by the rules of its own parser: what copal shows, and compares a selection with.
//!
//! A bootloader is stricter than a program that repairs its file: what it cannot read is not set, and without a root it takes its default one.

use super::envblock::{Damage, HEADER, split_line, unescape};
use super::uenv::{self, Line};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Variables {
    /// In the order of the file; a name may be there several times.
    all: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Variables {
    /// As GRUB and `grub-editenv` read a block of any size (GRUB 2.12, `grub-core/lib/envblk.c`, `grub_envblk_open` and
    /// `grub_envblk_iterate`): without the first line, and at least a byte after it, nothing is read. A name extends to the next `=`,
    /// also over newlines. In a comment a backslash escapes the newline, as in a value. Where a line does not end, reading ends.
    pub fn of_block(bytes: &[u8]) -> Result<Variables, Damage> {
        let mut rest = bytes.strip_prefix(HEADER).filter(|rest| !rest.is_empty()).ok_or(Damage::Header)?;
        let mut found = Variables::default();
        while !rest.is_empty() {
            let comment = rest.starts_with(b"#");
            let start = if comment { Some(0) } else { rest.iter().position(|b| *b == b'=').map(|at| at + 1) };
            let line = start.and_then(|at| rest.split_at_checked(at));
            let Some((name, (value, after))) = line.and_then(|(name, rest)| Some((name, split_line(rest)?)))
            else {
                break;
            };
            if !comment {
                let name = name.strip_suffix(b"=").unwrap_or(name);
                found.all.push((text(name).to_vec(), text(&unescape(value)).to_vec()));
            }
            rest = after;
        }
        Ok(found)
    }

    /// Adds what U-Boot's `env import -t` reads of a file; see [`uenv`]. Lines before a line without a name are set nevertheless. A
    /// deleted variable is empty, as for a script.
    pub fn import(&mut self, file: &uenv::Uenv) -> Result<(), Damage> {
        for line in file.lines() {
            match line {
                Line::Comment => {}
                Line::Delete(name) => self.all.push((name.to_vec(), Vec::new())),
                Line::Set(name, value) => self.all.push((name.to_vec(), value)),
                Line::Nameless => return Err(Damage::Nameless),
            }
        }
        Ok(())
    }

    /// Without the blanks that other programs write around values: a bootloader's shell drops them where it uses the value. A carriage return
    /// stays. Of a repeated name the last value counts.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.all.iter().rev().find(|(n, _)| n == name.as_bytes()).map(|(_, value)| without_blanks(value))
    }

    /// As the balena bootloader reads it: from the lines that `grub-editenv FILE list` prints, all of those that begin with the name
    /// (meta-balena, `os-helpers-bootenv`).
    #[must_use]
    pub fn listed(&self, name: &str) -> Option<Vec<u8>> {
        let list: Vec<u8> =
            self.all.iter().flat_map(|(n, value)| [n, &b"="[..], value, b"\n"].concat()).collect();
        let lines = list.split(|b| *b == b'\n');
        let found: Vec<&[u8]> =
            lines.filter_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"=")).collect();
        (!found.is_empty()).then(|| without_blanks(&found.join(&b'\n')).to_vec())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.all.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
    }
}

pub(super) fn without_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// For a program in C a text ends at its first zero byte.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == 0).next().unwrap_or_default()
}
