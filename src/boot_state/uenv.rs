//! Files that U-Boot imports as text: `KEY=VALUE` lines.
//!
//! U-Boot reads them with `env import -t` (`himport_r` in `lib/hashtable.c`): a zero byte ends the text; a line that begins with `#`
//! is a comment; a backslash in a value escapes the next byte, also a newline; of a repeated key the last value counts.

use super::envblock::trim;

/// Keeps every byte that [`set`](Uenv::set) does not change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uenv {
    /// Each with its newline; the last line may lack it.
    lines: Vec<Vec<u8>>,
    /// From the first zero byte on: U-Boot does not read it.
    tail: Vec<u8>,
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

    /// Without the blanks, returns and zero bytes that other programs write around values.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.lines.iter().rev().find_map(|line| Some(trim(value_of(line, key)?)))
    }

    /// Replaces the value in every line of the key, or appends a line. Returns false, and changes nothing, for a key or value that could
    /// not be read back.
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

/// Whether the line has its newline, and that is not escaped.
fn ends(line: &[u8]) -> bool {
    let Some((b'\n', line)) = line.split_last() else { return false };
    let start = line.trim_ascii_start();
    if start.starts_with(b"#") {
        return true;
    }
    // Only in a value does a backslash escape.
    let value = line.iter().position(|b| *b == b'=').and_then(|at| line.get(at + 1..)).unwrap_or_default();
    value.iter().rev().take_while(|b| **b == b'\\').count().is_multiple_of(2)
}

fn value_of<'l>(line: &'l [u8], key: &str) -> Option<&'l [u8]> {
    line.trim_ascii_start().strip_prefix(key.as_bytes())?.strip_prefix(b"=")
}
