//! GRUB's environment block: 1024 bytes of text that GRUB changes at boot without a driver for writing file systems.
//!
//! GRUB's manual ("The GRUB environment block") and `grub-editenv` define the format: a header line, lines `KEY=VALUE` with
//! a backslash before each backslash and newline of the value, comments, and `#` as padding.

use std::fmt;

pub const SIZE: usize = 1024;

pub(super) const HEADER: &[u8] = b"# GRUB Environment Block\n";
/// A drive writes a sector as a whole.
const SECTOR: usize = crate::sys::file::SECTOR;

/// The keys of the boot decision, in the order of the block in the images.
pub const DECISION: [&str; 3] = [BOOTCOUNT, ROOT, UPGRADE];
pub const BOOTCOUNT: &str = "bootcount";
pub const ROOT: &str = "resin_root_part";
pub(crate) const UPGRADE: &str = "upgrade_available";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Comment(Vec<u8>),
    Pair { key: Vec<u8>, value: Vec<u8> },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EnvBlock {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    Size(usize),
    Header,
    Line,
    Twice,
    Comment,
    /// The file does not exist.
    Missing,
    /// Sound, but without a root that the bootloader knows.
    NoRoot,
    /// In text for U-Boot.
    Nameless,
    /// In text for U-Boot: a line of the selection ends as in Windows.
    Return,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Size(size) => write!(f, "it has {size} bytes instead of {SIZE}"),
            Damage::Header => f.write_str("it does not begin like an environment block"),
            Damage::Line => f.write_str("it has a line that is not KEY=VALUE"),
            Damage::Twice => f.write_str("it has a key twice"),
            Damage::Comment => f.write_str("a comment that ends in a backslash hides the line after it"),
            Damage::Missing => f.write_str("it does not exist"),
            Damage::NoRoot => f.write_str("it names no root"),
            Damage::Nameless => f.write_str("reading ends at a line that has a value and no key"),
            Damage::Return => f.write_str("a carriage return after a value belongs to the value"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge(
    pub usize, // bytes
);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its contents would take {} bytes, and it has {SIZE}", self.0)
    }
}

impl std::error::Error for TooLarge {}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewrite {
    pub new: Vec<u8>,
    /// Sectors that differ, in the order in which they must be written.
    pub order: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Layout {
    Kept,
    First,
    /// First, in a sector of their own.
    Apart,
}

impl EnvBlock {
    pub fn parse(bytes: &[u8]) -> Result<EnvBlock, Damage> {
        if bytes.len() != SIZE {
            return Err(Damage::Size(bytes.len()));
        }
        let mut rest = bytes.strip_prefix(HEADER).ok_or(Damage::Header)?;
        let mut block = EnvBlock::default();
        while !rest.is_empty() {
            if rest.starts_with(b"#") {
                let Some(end) = rest.iter().position(|b| *b == b'\n') else {
                    return if rest.iter().all(|b| *b == b'#') { Ok(block) } else { Err(Damage::Line) };
                };
                if end + 1 == rest.len() && rest.iter().take(end).all(|b| *b == b'#') {
                    // The end is not a comment: printed as one, it would leave no space.
                    return Ok(block);
                }
                let (comment, after) = rest.split_at_checked(end).ok_or(Damage::Line)?;
                // GRUB goes on after the newline that its own rule finds (`grub-core/lib/envblk.c`, `find_next_line`).
                if split_line(rest).is_none_or(|(line, _)| line != comment) {
                    return Err(Damage::Comment);
                }
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

    /// Reads the `KEY=VALUE` lines of any bytes: of a block that was cut short, was edited, or is not a block. Of a repeated key the last value
    /// counts, as for GRUB. For variables that mean nothing to copal only: the bootloader may read none of this.
    #[must_use]
    pub fn salvage(bytes: &[u8]) -> EnvBlock {
        let mut block = EnvBlock::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let end = rest.iter().position(|b| *b == b'\n').map_or(rest.len(), |at| at + 1);
            let plain = rest.split_at_checked(end).unwrap_or((rest, &[]));
            // Only in a value does a backslash escape a newline.
            let value = !plain.0.starts_with(b"#") && plain.0.contains(&b'=');
            // A value without an end was cut: the following lines still belong to it, and are not keys.
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

    /// Without the blanks, returns and zero bytes that other programs write around values.
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

    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().filter_map(|line| match line {
            Line::Pair { key, .. } => Some(key.as_slice()),
            Line::Comment(_) => None,
        })
    }

    /// Replaces the value where the key stands, or appends the key. Returns false, and changes nothing, for an invalid key.
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

    pub fn unset(&mut self, key: &str) -> bool {
        let before = self.lines.len();
        self.lines.retain(|line| !matches!(line, Line::Pair { key: k, .. } if k == key.as_bytes()));
        self.lines.len() != before
    }

    /// Removes the last line that is not part of the boot decision. Whether there was one.
    pub fn drop_last(&mut self) -> bool {
        let last = self.lines.iter().rposition(|line| !line.is_decision());
        last.map(|at| self.lines.remove(at)).is_some()
    }

    /// The block for a new file: the keys of the boot decision first; where the others are many, in a sector of their own, so that the
    /// others can never move them.
    pub fn print(&self) -> Result<Vec<u8>, TooLarge> {
        let first = self.text(Layout::First);
        let text = match self.text(Layout::Apart) {
            apart if first.len() > SECTOR && apart.len() <= SIZE => apart,
            _ => first,
        };
        pad(text)
    }

    /// How `old`, a sound block, becomes this one sector by sector. After each sector the block is sound, each key has its old or its new
    /// value, and the boot decision is all old or all new. `None` where no order does that: the file must be replaced.
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
            let sectors = old.chunks(SECTOR).zip(new.chunks(SECTOR)).enumerate();
            let bytes: Vec<u8> = sectors
                .flat_map(
                    |(index, (old, new))| {
                        if order.iter().take(done).any(|at| *at == index) { new } else { old }
                    },
                )
                .copied()
                .collect();
            EnvBlock::parse(&bytes).is_ok_and(|now| now.is_between(before, self))
        })
    }

    /// Whether each key has its value of `before` or `after`, and the boot decision is all from one of them.
    fn is_between(&self, before: &EnvBlock, after: &EnvBlock) -> bool {
        let decided = |as_in: &EnvBlock| DECISION.iter().all(|key| self.get(key) == as_in.get(key));
        let all = self.keys().chain(before.keys()).chain(after.keys());
        let mut others = all.filter(|key| !DECISION.iter().any(|d| d.as_bytes() == *key));
        (decided(before) || decided(after))
            && others.all(|key| [before, after].iter().any(|b| b.value(key) == self.value(key)))
    }

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

    /// A comment of `bytes` bytes with its newline; at least two.
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

/// A line without its newline, and the rest; an escaped newline does not end the line. `None` where no line ends.
pub(super) fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
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

pub(super) fn unescape(value: &[u8]) -> Vec<u8> {
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

/// Removes blanks, tabs, returns, newlines and zero bytes at both ends.
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
