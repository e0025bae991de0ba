//! Files that U-Boot imports as text: `KEY=VALUE` lines.
//!
//! As `env import -t` reads them (`himport_r` in U-Boot's `lib/hashtable.c`): a zero byte ends the text, a line that begins with
//! `#` is a comment, a backslash in a value takes the next byte as it is (also a newline), of a key that is there twice the last
//! value counts.

use super::envblock::trim;

/// A file, byte by byte as it was save for what [`set`](Uenv::set) changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uenv {
    /// Each with its newline, which the last one may lack.
    lines: Vec<Vec<u8>>,
    /// From the first zero byte on; not read by anybody.
    tail: Vec<u8>,
}

impl Uenv {
    /// Any bytes are such a file.
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

    /// The file's bytes.
    #[must_use]
    pub fn print(&self) -> Vec<u8> {
        let mut out = self.lines.concat();
        out.extend(&self.tail);
        out
    }

    /// The value of a key, without the blanks, returns and zero bytes that other writers leave around it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.lines.iter().rev().find_map(|line| Some(trim(value_of(line, key)?)))
    }

    /// Gives a key a value everywhere it stands, else in a new line at the end. False, and nothing is changed, for a key or a value
    /// that could not be read back.
    pub fn set(&mut self, key: &str, value: &str) -> bool {
        let key_fits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !key_fits || !value.bytes().all(|b| b.is_ascii_graphic() && b != b'\\') {
            return false;
        }
        let new = format!("{key}={value}\n").into_bytes();
        let mut known = false;
        for line in self.lines.iter_mut().filter(|line| value_of(line, key).is_some()) {
            line.clone_from(&new);
            known = true;
        }
        if !known {
            if let Some(last) = self.lines.last_mut() {
                while !ends(last) {
                    last.push(b'\n');
                }
            }
            self.lines.push(new);
        }
        true
    }
}

/// Whether a line is complete: its newline is there, and is not part of a value.
fn ends(line: &[u8]) -> bool {
    let Some((b'\n', line)) = line.split_last() else { return false };
    let start = line.trim_ascii_start();
    if start.starts_with(b"#") {
        return true;
    }
    // Only in a value does a backslash mean anything.
    let value = line.iter().position(|b| *b == b'=').and_then(|at| line.get(at + 1..)).unwrap_or_default();
    value.iter().rev().take_while(|b| **b == b'\\').count().is_multiple_of(2)
}

fn value_of<'l>(line: &'l [u8], key: &str) -> Option<&'l [u8]> {
    line.trim_ascii_start().strip_prefix(key.as_bytes())?.strip_prefix(b"=")
}
