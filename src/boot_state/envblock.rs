//! GRUB's environment block: 1024 bytes of text that GRUB changes from where it runs, without knowing how to write a file system.
//!
//! The format is that of GRUB's manual ("The GRUB environment block") and of `grub-editenv`: a header line, lines `KEY=VALUE` in
//! which a backslash stands before a backslash and a newline of the value, comments, and `#` up to the end.

use std::fmt;

/// Bytes of a block, always.
pub const SIZE: usize = 1024;

const HEADER: &[u8] = b"# GRUB Environment Block\n";
/// Bytes of a sector, which a drive writes at once.
const SECTOR: usize = crate::sys::file::SECTOR;

/// What the bootloaders decide by, in the order of the block that images come with.
pub const DECISION: [&str; 3] = [BOOTCOUNT, ROOT, UPGRADE];
/// How often the selected root was tried.
pub const BOOTCOUNT: &str = "bootcount";
/// The selected root.
pub const ROOT: &str = "resin_root_part";
/// Whether it is on trial.
pub const UPGRADE: &str = "upgrade_available";

/// A line after the header.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    /// As it is, with its `#`.
    Comment(Vec<u8>),
    Pair {
        key: Vec<u8>,
        value: Vec<u8>,
    },
}

/// The contents of a block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnvBlock {
    lines: Vec<Line>,
}

/// Why bytes are not a sound block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Not 1024 bytes, but this many.
    Size(usize),
    /// It does not begin as a block does.
    Header,
    /// Something is neither `KEY=VALUE` nor a comment.
    Line,
    /// A key is there twice.
    Twice,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Size(size) => write!(f, "it has {size} bytes instead of {SIZE}"),
            Damage::Header => f.write_str("its first line is not that of an environment block"),
            Damage::Line => f.write_str("it has a line that is not KEY=VALUE"),
            Damage::Twice => f.write_str("it has a key twice"),
        }
    }
}

/// The contents do not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge(
    /// Bytes they would take.
    pub usize,
);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its contents would take {} bytes, and it has {SIZE}", self.0)
    }
}

impl std::error::Error for TooLarge {}

/// A change in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    /// The block afterwards.
    pub new: Vec<u8>,
    /// Numbers of the sectors that differ, in the order in which they are to be written.
    pub order: Vec<usize>,
}

/// Where the keys of the boot decision are put.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// Where they were.
    Kept,
    /// First.
    First,
    /// First, in a sector of their own.
    Apart,
}

impl EnvBlock {
    /// Reads a sound block.
    ///
    /// # Errors
    /// What is wrong with it; [`salvage`](Self::salvage) reads what can be read.
    pub fn parse(bytes: &[u8]) -> Result<EnvBlock, Damage> {
        if bytes.len() != SIZE {
            return Err(Damage::Size(bytes.len()));
        }
        let mut rest = bytes.strip_prefix(HEADER).ok_or(Damage::Header)?;
        let mut block = EnvBlock::default();
        while !rest.is_empty() {
            if rest.starts_with(b"#") {
                let Some(end) = rest.iter().position(|b| *b == b'\n') else {
                    // The padding.
                    return if rest.iter().all(|b| *b == b'#') { Ok(block) } else { Err(Damage::Line) };
                };
                let (comment, after) = rest.split_at_checked(end).ok_or(Damage::Line)?;
                block.lines.push(Line::Comment(comment.to_vec()));
                rest = after.get(1..).unwrap_or_default();
                continue;
            }
            let (line, after) = split_line(rest).ok_or(Damage::Line)?;
            let (key, value) = pair(line).ok_or(Damage::Line)?;
            if block.value(key).is_some() {
                return Err(Damage::Twice);
            }
            block.lines.push(Line::Pair { key: key.to_vec(), value: unescape(value) });
            rest = after;
        }
        Ok(block)
    }

    /// Reads the lines `KEY=VALUE` of anything: of a block that was cut short, edited by hand or never was one. Of a key that is
    /// there twice the last value counts, as for GRUB.
    #[must_use]
    pub fn salvage(bytes: &[u8]) -> EnvBlock {
        let mut block = EnvBlock::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = rest.iter().position(|b| *b == b'\n').map_or(rest.len(), |at| at + 1);
            let plain = rest.split_at_checked(end).unwrap_or((rest, &[]));
            // A backslash before the newline means something only in a value.
            let value = !plain.0.starts_with(b"#") && plain.0.contains(&b'=');
            // Where the value has no end, it was cut, and what follows is still the value: no keys.
            let (line, after) = if value { split_line(rest).unwrap_or((plain.0, &[])) } else { plain };
            rest = after;
            let Some((key, value)) = pair(trim(line)) else { continue };
            let value = unescape(trim(value));
            let in_key = |b: &u8| b.is_ascii_alphanumeric() || b"_.-".contains(b);
            if key.iter().all(in_key) && !value.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
                block.put(key, value);
            }
        }
        block
    }

    /// The value of a key, without the blanks, returns and zero bytes that other writers leave around it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.value(key.as_bytes()).map(trim)
    }

    fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.lines.iter().find_map(|line| match line {
            Line::Pair { key: k, value } if k == key => Some(value.as_slice()),
            _ => None,
        })
    }

    /// The keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().filter_map(|line| match line {
            Line::Pair { key, .. } => Some(key.as_slice()),
            Line::Comment(_) => None,
        })
    }

    /// Gives a key a value: where it stands, else at the end. False, and nothing is changed, where this can be no key.
    pub fn set(&mut self, key: &str, value: &[u8]) -> bool {
        let fit = !key.is_empty() && !key.starts_with('#') && !key.contains(['=', '\n', '\0']);
        if fit {
            self.put(key.as_bytes(), value.to_vec());
        }
        fit
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) {
        let known = self.lines.iter_mut().find_map(|line| match line {
            Line::Pair { key: k, value } if k == key => Some(value),
            _ => None,
        });
        match known {
            Some(known) => *known = value,
            None => self.lines.push(Line::Pair { key: key.to_vec(), value }),
        }
    }

    /// Takes a key out; whether it was there.
    pub fn unset(&mut self, key: &str) -> bool {
        let before = self.lines.len();
        self.lines.retain(|line| !matches!(line, Line::Pair { key: k, .. } if k == key.as_bytes()));
        self.lines.len() != before
    }

    /// Takes out the last line that the boot decision does not need; whether there was one.
    pub fn drop_last(&mut self) -> bool {
        let last = self.lines.iter().rposition(|line| !line.is_decision());
        last.map(|at| self.lines.remove(at)).is_some()
    }

    /// The block as it is written anew: the keys of the boot decision first, and where there are many others, in a sector of their
    /// own, so that the others can never move them.
    ///
    /// # Errors
    /// It does not fit.
    pub fn print(&self) -> Result<Vec<u8>, TooLarge> {
        let first = self.text(Layout::First);
        let text = match self.text(Layout::Apart) {
            apart if first.len() > SECTOR && apart.len() <= SIZE => apart,
            _ => first,
        };
        pad(text)
    }

    /// How a sound block becomes this one by writing its sectors one after the other: the new bytes, and the sectors in order.
    /// After each of them the block is sound, has each key with its old or its new value, and the boot decision is all old or
    /// all new. `None` where that cannot be: then the file has to be replaced.
    ///
    /// # Errors
    /// It does not fit.
    pub fn in_place(&self, old: &[u8]) -> Result<Option<Rewrite>, TooLarge> {
        self.print()?;
        let Ok(before) = EnvBlock::parse(old) else { return Ok(None) };
        for layout in [Layout::Kept, Layout::First, Layout::Apart] {
            let Ok(new) = pad(self.text(layout)) else { continue };
            let mut order = crate::sys::file::differing(old, &new);
            for _ in 0..2 {
                if self.is_sound_throughout(&before, old, &new, &order) {
                    return Ok(Some(Rewrite { new, order }));
                }
                order.reverse();
            }
        }
        Ok(None)
    }

    fn is_sound_throughout(&self, before: &EnvBlock, old: &[u8], new: &[u8], order: &[usize]) -> bool {
        (0..=order.len()).all(|done| {
            let written = order.get(..done).unwrap_or_default();
            let sectors = old.chunks(SECTOR).zip(new.chunks(SECTOR)).enumerate();
            let bytes: Vec<u8> = sectors
                .flat_map(|(index, (old, new))| if written.contains(&index) { new } else { old })
                .copied()
                .collect();
            EnvBlock::parse(&bytes).is_ok_and(|now| now.is_between(before, self))
        })
    }

    /// Whether each key has the value it has in one of two blocks, those of the boot decision all in the same.
    fn is_between(&self, before: &EnvBlock, after: &EnvBlock) -> bool {
        let decided = |as_in: &EnvBlock| DECISION.iter().all(|key| self.get(key) == as_in.get(key));
        let all = self.keys().chain(before.keys()).chain(after.keys());
        let mut others = all.filter(|key| !DECISION.iter().any(|d| d.as_bytes() == *key));
        (decided(before) || decided(after))
            && others.all(|key| [before, after].iter().any(|b| b.value(key) == self.value(key)))
    }

    /// Header and lines, without the padding.
    fn text(&self, layout: Layout) -> Vec<u8> {
        let mut text = HEADER.to_vec();
        match layout {
            Layout::Kept => self.lines.iter().for_each(|line| line.print(&mut text)),
            Layout::First | Layout::Apart => {
                self.lines.iter().filter(|l| l.is_decision()).for_each(|line| line.print(&mut text));
                if matches!(layout, Layout::Apart) {
                    let missing = SECTOR.saturating_sub(text.len());
                    Line::filler(missing).iter().for_each(|line| line.print(&mut text));
                }
                let others = self.lines.iter().filter(|l| !l.is_decision() && !l.is_filler());
                others.for_each(|line| line.print(&mut text));
            }
        }
        text
    }
}

impl Line {
    fn is_decision(&self) -> bool {
        matches!(self, Line::Pair { key, .. } if DECISION.iter().any(|d| d.as_bytes() == key))
    }

    /// A comment that takes this many bytes with its newline, at least two.
    fn filler(bytes: usize) -> Option<Line> {
        (bytes >= 2).then(|| Line::Comment(vec![b'#'; bytes - 1]))
    }

    fn is_filler(&self) -> bool {
        matches!(self, Line::Comment(text) if text.iter().all(|b| *b == b'#'))
    }

    fn print(&self, to: &mut Vec<u8>) {
        match self {
            Line::Comment(text) => to.extend(text),
            Line::Pair { key, value } => {
                to.extend(key);
                to.push(b'=');
                for byte in value {
                    if matches!(byte, b'\\' | b'\n') {
                        to.push(b'\\');
                    }
                    to.push(*byte);
                }
            }
        }
        to.push(b'\n');
    }
}

fn pad(mut text: Vec<u8>) -> Result<Vec<u8>, TooLarge> {
    if text.len() > SIZE {
        return Err(TooLarge(text.len()));
    }
    text.resize(SIZE, b'#');
    Ok(text)
}

/// A line without its newline, and what follows; a newline after a backslash is part of the line. `None` where none ends.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut escaped = false;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' if !escaped => return Some((bytes.get(..at)?, bytes.get(at + 1..)?)),
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

fn pair(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|b| *b == b'=')?;
    let (key, value) = line.split_at_checked(at)?;
    let fit = !key.is_empty() && !key.starts_with(b"#") && !key.iter().any(|b| matches!(b, b'\n' | b'\0'));
    fit.then(|| (key, value.get(1..).unwrap_or_default()))
}

fn unescape(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => out.extend(bytes.next()),
            _ => out.push(*byte),
        }
    }
    out
}

/// Without blanks, tabs, returns, newlines and zero bytes at both ends.
#[must_use]
pub fn trim(mut bytes: &[u8]) -> &[u8] {
    let blank = |b: &u8| matches!(b, b' ' | b'\t' | b'\r' | b'\n' | 0);
    while let Some((_, rest)) = bytes.split_first().filter(|(b, _)| blank(b)) {
        bytes = rest;
    }
    while let Some((_, rest)) = bytes.split_last().filter(|(b, _)| blank(b)) {
        bytes = rest;
    }
    bytes
}
