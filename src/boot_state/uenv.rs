//! Files that U-Boot imports as text: `KEY=VALUE` lines.
//!
//! U-Boot reads them with `env import -t` (U-Boot 2026.10-rc2, `himport_r` in `lib/hashtable.c`): blanks and tabs before a line do not count; a
//! line that begins with `#` is a comment; a backslash in a value escapes the next byte, also a newline; of a repeated key the last value
//! counts; a key without a value, with or without `=`, is deleted. A carriage return belongs to what it stands in. A zero byte ends a line as
//! a newline does; the text ends where one stands at the beginning of a line. **A line with a value and no key, `=x`, ends the import**:
//! nothing after it is read.

/// Keeps every byte that [`set`](Uenv::set) does not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uenv {
    /// Each with its newline or zero byte; the last line may lack it.
    lines: Vec<Vec<u8>>,
    /// After the end of the text: U-Boot does not read it.
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
    /// The first line of `bytes`, and how many bytes it takes with its end: more than there are, if nothing ends it.
    fn first(bytes: &'l [u8]) -> (Line<'l>, usize) {
        // As U-Boot has it in memory: with a zero byte after the last one.
        let at = |index: usize| bytes.get(index).copied().unwrap_or(0);
        let ends = |index: usize| matches!(at(index), 0 | b'\n');
        let start = bytes.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        let rest = bytes.get(start..).unwrap_or_default();
        let length = |stop: &dyn Fn(u8) -> bool| rest.iter().take_while(|b| !stop(**b)).count();
        if at(start) == b'#' {
            return (Line::Comment, start + length(&|b| matches!(b, 0 | b'\n')) + 1);
        }
        let equals = start + length(&|b| matches!(b, 0 | b'\n' | b'='));
        let name = bytes.get(start..equals).unwrap_or_default();
        if ends(equals) {
            return (Line::Delete(name), equals + 1);
        }
        let mut next = equals + 1;
        if ends(next) {
            return (Line::Delete(name), next + 1);
        }
        let mut value = Vec::new();
        while !ends(next) {
            // At the very end, a backslash escapes nothing.
            next += usize::from(at(next) == b'\\' && at(next + 1) != 0);
            value.push(at(next));
            next += 1;
        }
        let line = if name.is_empty() { Line::Nameless } else { Line::Set(name, value) };
        (line, next + 1)
    }

    fn of(line: &'l [u8]) -> Line<'l> {
        Line::first(line).0
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
        let (mut lines, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let (_, taken) = Line::first(rest);
            let (line, after) = rest.split_at_checked(taken).unwrap_or((rest, &[]));
            lines.push(line.to_vec());
            rest = after;
            if rest.starts_with(&[0]) {
                break;
            }
        }
        Uenv { lines, tail: rest.to_vec() }
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

    /// The names of the variables whose values end with a carriage return, which U-Boot takes for a part of them, with the numbers of their lines.
    #[must_use]
    pub fn with_returns(&self) -> Vec<(usize, String)> {
        let (mut number, mut found) = (1, Vec::new());
        for line in &self.lines {
            if let Line::Set(key, value) = Line::of(line)
                && value.ends_with(b"\r")
            {
                found.push((number, String::from_utf8_lossy(key).into_owned()));
            }
            number += line.iter().filter(|b| **b == b'\n').count();
        }
        found
    }

    /// Ends each line with a newline alone: a carriage return before it goes, unless a backslash escapes it. Returns whether there was one.
    pub fn drop_returns(&mut self) -> bool {
        let mut dropped = false;
        for line in &mut self.lines {
            let end = usize::from(line.ends_with(b"\n") || line.ends_with(&[0]));
            let text = line.len().saturating_sub(end);
            let is_return = |text: &[u8]| text.ends_with(b"\r") && !text.ends_with(b"\\\r");
            if line.get(..text).is_some_and(is_return) {
                line.remove(text.saturating_sub(1));
                dropped = true;
            }
        }
        dropped
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

/// Whether the line has its newline or zero byte, and that is not escaped.
fn ends(line: &[u8]) -> bool {
    Line::first(line).1 <= line.len()
}
