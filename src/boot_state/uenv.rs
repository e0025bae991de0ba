//! Files that U-Boot imports as text: `KEY=VALUE` lines.
//!
//! U-Boot reads them with `env import -t` (U-Boot 2026.10-rc2, `himport_r` in `lib/hashtable.c`): a zero byte ends the text; blanks and tabs
//! before a line do not count; a line that begins with `#` is a comment; a backslash in a value escapes the next byte, also a newline; of a
//! repeated key the last value counts; a key without a value, with or without `=`, is deleted. **A line with a value and no key, `=x`, ends
//! the import**: nothing after it is read.

/// Keeps every byte that [`set`](Uenv::set) does not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uenv {
    /// Each with its newline; the last line may lack it.
    lines: Vec<Vec<u8>>,
    /// From the first zero byte on: U-Boot does not read it.
    tail: Vec<u8>,
}

/// What a line is for U-Boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<'l> {
    Comment,
    Set(&'l [u8], Vec<u8>),
    Delete(&'l [u8]),
    Nameless,
}

impl<'l> Line<'l> {
    fn of(line: &'l [u8]) -> Line<'l> {
        let line = if ends(line) { line.strip_suffix(b"\n").unwrap_or(line) } else { line };
        let line = skip_blanks(line);
        if line.starts_with(b"#") {
            return Line::Comment;
        }
        let equals = line.iter().position(|b| *b == b'=').and_then(|at| line.split_at_checked(at));
        match equals {
            None => Line::Delete(line),
            Some((key, b"=")) => Line::Delete(key),
            Some((b"", _)) => Line::Nameless,
            Some((key, value)) => Line::Set(key, unescape(value.get(1..).unwrap_or_default())),
        }
    }

    fn key(&self) -> Option<&'l [u8]> {
        match self {
            Line::Set(key, _) | Line::Delete(key) => Some(key),
            Line::Comment | Line::Nameless => None,
        }
    }
}

impl Uenv {
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Uenv {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        let (text, tail) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
        let mut uenv = Uenv { lines: Vec::new(), tail: tail.to_vec() };
        let mut line = Vec::new();
        for byte in text {
            line.push(*byte);
            if ends(&line) {
                uenv.lines.push(std::mem::take(&mut line));
            }
        }
        if !line.is_empty() {
            uenv.lines.push(line);
        }
        uenv
    }

    #[must_use]
    pub fn print(&self) -> Vec<u8> {
        let mut out = self.lines.concat();
        out.extend(&self.tail);
        out
    }

    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.lines.iter().map(|line| Line::of(line))
    }

    /// Replaces the value in every line of the key, or appends a line, and removes the lines at which U-Boot stops reading. Returns false,
    /// and changes nothing, for a key or value that could not be read back.
    pub fn set(&mut self, key: &str, value: &str) -> bool {
        let key_fits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !key_fits || value.is_empty() || !value.bytes().all(|b| b.is_ascii_graphic() && b != b'\\') {
            return false;
        }
        self.lines.retain(|line| Line::of(line) != Line::Nameless);
        let new = format!("{key}={value}\n").into_bytes();
        let mut known = false;
        for line in self.lines.iter_mut().filter(|line| Line::of(line).key() == Some(key.as_bytes())) {
            line.clone_from(&new);
            known = true;
        }
        if !known {
            if let Some(last) = self.lines.last_mut() {
                if !ends(last) {
                    last.push(b'\n');
                }
                if !ends(last) {
                    // At the very end a backslash escapes nothing.
                    last.pop();
                    last.extend(b"\\\n");
                }
            }
            self.lines.push(new);
        }
        true
    }
}

fn skip_blanks(mut line: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = line {
        line = rest;
    }
    line
}

/// Whether the line has its newline, and that is not escaped.
fn ends(line: &[u8]) -> bool {
    let Some((b'\n', line)) = line.split_last() else { return false };
    if skip_blanks(line).starts_with(b"#") {
        return true;
    }
    // Only in a value does a backslash escape.
    let value = line.iter().position(|b| *b == b'=').and_then(|at| line.get(at + 1..)).unwrap_or_default();
    value.iter().rev().take_while(|b| **b == b'\\').count().is_multiple_of(2)
}

/// A backslash at the end escapes nothing, and stays.
fn unescape(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.iter().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'\\', Some(_)) => out.extend(bytes.next()),
            _ => out.push(*byte),
        }
    }
    out
}
