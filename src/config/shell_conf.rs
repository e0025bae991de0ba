//! A shell fragment of `KEY=value` lines as a value: parse → value → print.
//!
//! Boards source such files in their own programs too. So an accepted file means exactly what it means to a shell, and a file
//! that only a shell can evaluate is refused with line and column. Nothing is ever executed.
//!
//! Accepted: comments, blank lines, `'…'`, `"…"`, backslashes and their concatenation, values that continue in the next
//! line, comments after white space, `export KEY=value`. Braces and wildcards are plain text, as in any assignment.
//!
//! Refused as expansion: `$name`, `${…}`, `$(…)`, `$'…'`, back quotes, and `~` where a shell inserts a home folder (at the
//! start of a value and after `:`). A `$` that a shell does not change is accepted.
//!
//! Refused as syntax: everything that would be a command, such as `KEY=a b` (runs `b`), `KEY += a`, `KEY ?= a`, and override
//! names that are not variable names (`KEY:machine=a`, `KEY_my-board=a`). A shell answers the last ones with "command not
//! found", and the shell flasher ended there, because it ran with `set -e`. So no device in the field depends on such a line,
//! and a guess might choose the wrong disk. An override that is a variable name (`KEY_machine=a`) is an unknown key.
//!
//! More lenient than a shell in one respect: CRLF line ends and a byte order mark, which editors add, are dropped.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::Chars;

use super::read;
use crate::error::{Code, Error, Result};

/// Real files have about one kilobyte.
pub const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub key: String,
    pub value: String,
    pub line: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawConf {
    pub file: PathBuf,
    pub entries: Vec<Assignment>,
}

impl RawConf {
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = read::bounded(path, MAX_BYTES).map_err(|fault| unreadable(path, fault))?;
        Self::from_bytes(&bytes, path)
    }

    /// `None` without the file. An existing path that cannot be read, such as a dangling link, is an error.
    pub(super) fn load_if_there(path: &Path) -> Result<Option<Self>> {
        match Self::load(path) {
            Ok(raw) => Ok(Some(raw)),
            Err(e) if e.code() == Code::ConfMissing && path.symlink_metadata().is_err() => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// An error about the value of `key`.
    pub(super) fn invalid(&self, key: &str, what: &str, rule: &str) -> Error {
        let line = self.entry(key).map(|e| format!(":{}", e.line)).unwrap_or_default();
        let message = format!("{}{line}: {key}: {what}", self.file.display());
        Error::new(Code::ConfInvalid, message).object(key).with_hint(rule)
    }

    /// An error for each key other than `known`: most likely a typing mistake.
    pub(super) fn unknown_keys(&self, known: impl Fn(&str) -> bool) -> impl Iterator<Item = Error> {
        self.entries.iter().filter(move |entry| !known(&entry.key)).map(|Assignment { key, line, .. }| {
            let message = format!("{}:{line}: unknown key {key}", self.file.display());
            Error::new(Code::ConfInvalid, message)
                .object(key)
                .with_hint("correct the key, or remove the line")
        })
    }

    pub fn from_bytes(bytes: &[u8], file: &Path) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let (line, column) = read::position(bytes, e.valid_up_to());
            at(Code::ConfSyntax, file, Position { line, column }, "this is not UTF-8 text")
                .with_hint("save the file as UTF-8")
        })?;
        Self::parse(text, file)
    }

    pub fn parse(text: &str, file: &Path) -> Result<Self> {
        Self::scan(text, file, &mut Err)
    }

    /// Each mistake of a file that [`load`](Self::load) refuses, and the assignments beside them. A line with a mistake is left out.
    pub(super) fn load_leniently(path: &Path) -> (Self, Vec<Error>) {
        const MOST: usize = 20;
        let mut mistakes = Vec::new();
        let mut keep = |e| {
            if mistakes.len() == MOST {
                return Err(e);
            }
            mistakes.push(e);
            Ok(())
        };
        let raw = match read::bounded(path, MAX_BYTES) {
            Ok(bytes) => Self::scan(&String::from_utf8_lossy(&bytes), path, &mut keep).unwrap_or_default(),
            Err(_) => Self::default(),
        };
        (raw, mistakes)
    }

    /// An error of `mistake` ends it.
    fn scan(text: &str, file: &Path, mistake: &mut dyn FnMut(Error) -> Result<()>) -> Result<Self> {
        if let Some(nul) = text.find('\0') {
            let (line, column) = read::position(text.as_bytes(), nul);
            return Err(at(Code::ConfSyntax, file, Position { line, column }, "a NUL byte")
                .with_hint("write the file again: it is damaged"));
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut cursor = Cursor { rest: text.chars(), at: Position { line: 1, column: 1 }, file };
        let mut entries = Vec::new();
        loop {
            cursor.skip_blanks();
            match cursor.peek() {
                None => return Ok(RawConf { file: file.to_owned(), entries }),
                Some('#') => cursor.skip_comment(),
                Some(_) if cursor.at_line_end() => {
                    cursor.bump();
                }
                Some(_) => {
                    let begin = cursor.clone();
                    match cursor.assignment() {
                        Ok(entry) => entries.push(entry),
                        Err(e) => {
                            mistake(e)?;
                            // A quote that is not closed has taken the rest of the file.
                            cursor = begin;
                            while cursor.bump().is_some_and(|c| c != '\n') {}
                        }
                    }
                }
            }
        }
    }

    /// Of a repeated key the last value counts, as in a shell.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entry(key).map(|e| e.value.as_str())
    }

    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Assignment> {
        self.entries.iter().rev().find(|e| e.key == key)
    }
}

/// Prints a fragment that a shell and [`RawConf::parse`] read as the same keys and values.
impl fmt::Display for RawConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Assignment { key, value, .. } in &self.entries {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_./,:@%+-".contains(c);
            if value.chars().all(plain) {
                writeln!(f, "{key}={value}")?;
            } else {
                writeln!(f, "{key}='{}'", value.replace('\'', r"'\''"))?;
            }
        }
        Ok(())
    }
}

/// Whether `name` is a shell variable name (POSIX.1-2017, Base Definitions, 3.235 "Name").
#[must_use]
pub fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic())
        && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}

fn unreadable(path: &Path, fault: read::Fault) -> Error {
    let name = path.display();
    let error = |code, why: &str| {
        Error::new(code, format!("cannot read the configuration {name}{why}")).object(path.display())
    };
    match fault {
        read::Fault::Missing(e) => error(Code::ConfMissing, "").because(e),
        read::Fault::Io(e) => error(read::io_code(&e), "").because(e),
        read::Fault::NotRegular => error(Code::ConfMissing, ": it is not a regular file"),
        read::Fault::TooLarge(limit) => error(Code::ConfSyntax, &format!(": it has more than {limit} bytes"))
            .with_hint("name the right file, or write it again"),
        read::Fault::Changed => error(Code::Busy, ": another program writes to it")
            .with_hint("run again when that program has finished"),
    }
}

#[derive(Clone, Copy)]
struct Position {
    line: usize,
    column: usize,
}

fn at(code: Code, file: &Path, at: Position, what: impl fmt::Display) -> Error {
    let place = format!("{}:{}:{}", file.display(), at.line, at.column);
    Error::new(code, format!("{place}: {what}")).object(place)
}

const BLANKS: [char; 2] = [' ', '\t'];
const OPERATORS: [char; 7] = [';', '&', '|', '<', '>', '(', ')'];

#[derive(Clone)]
struct Cursor<'a> {
    rest: Chars<'a>,
    at: Position,
    file: &'a Path,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.clone().next()
    }

    fn second(&self) -> Option<char> {
        self.rest.clone().nth(1)
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        match c {
            '\n' => self.at = Position { line: self.at.line + 1, column: 1 },
            _ => self.at.column += 1,
        }
        Some(c)
    }

    fn error(&self, what: impl fmt::Display) -> Error {
        at(Code::ConfSyntax, self.file, self.at, what)
    }

    fn at_line_end(&self) -> bool {
        match self.peek() {
            Some('\n') => true,
            Some('\r') => matches!(self.second(), None | Some('\n')),
            _ => false,
        }
    }

    fn continuation(&mut self) -> bool {
        let mut ahead = self.rest.clone();
        if ahead.next() != Some('\\') {
            return false;
        }
        let taken = match (ahead.next(), ahead.next()) {
            (Some('\n'), _) => 2,
            (Some('\r'), Some('\n')) => 3,
            _ => return false,
        };
        for _ in 0..taken {
            self.bump();
        }
        true
    }

    fn skip_blanks(&mut self) {
        loop {
            match self.peek() {
                Some(c) if BLANKS.contains(&c) => drop(self.bump()),
                _ if self.continuation() => {}
                _ => return,
            }
        }
    }

    fn skip_comment(&mut self) {
        while self.peek().is_some_and(|c| c != '\n') {
            self.bump();
        }
    }

    fn assignment(&mut self) -> Result<Assignment> {
        let mut start = self.at;
        let mut key = self.word()?;
        if key == "export" && self.peek().is_some_and(|c| BLANKS.contains(&c)) {
            self.skip_blanks();
            start = self.at;
            key = self.word()?;
        }
        if self.peek() != Some('=') || !is_name(&key) {
            return Err(self.not_an_assignment(start, &key));
        }
        self.bump();
        let value = self.value()?;
        self.end_of_assignment()?;
        Ok(Assignment { key, value, line: start.line })
    }

    /// The text before `=`, a blank, or any character that no shell allows in a name.
    fn word(&mut self) -> Result<String> {
        let mut word = String::new();
        while let Some(c) = self.peek() {
            self.refuse_expansion(false)?;
            if c == '=' || BLANKS.contains(&c) || self.at_line_end() || OPERATORS.contains(&c) {
                break;
            }
            word.push(c);
            self.bump();
        }
        Ok(word)
    }

    fn not_an_assignment(&self, start: Position, word: &str) -> Error {
        let shown = read::shown(word);
        let error = |what: String| at(Code::ConfSyntax, self.file, start, what);
        // Recipes assign with blanks around `=`, `?=`, `??=`, `:=`, `+=`, `.=`; shells do not.
        let next = self.rest.clone().skip_while(|c| BLANKS.contains(c)).find(|c| !"?:+.".contains(*c));
        if next == Some('=') && self.peek() != Some('=') {
            return error(format!("the assignment to `{shown}` has a blank before `=`")).with_hint(
                "write KEY=value; operators such as `?=` belong in the recipe that writes this file",
            );
        }
        match (self.peek() == Some('='), word.strip_suffix('+')) {
            (true, Some(name)) if is_name(name) => error(format!("`{shown}=` would add to an earlier value"))
                .with_hint("write the whole value in one line KEY=value"),
            (true, _) if word.is_empty() => error("there is no key before `=`".to_owned()),
            (true, _) => error(format!("`{shown}` is not a variable name")).with_hint(
                "overrides such as KEY:machine or KEY_my-board belong in the recipe that writes this file",
            ),
            (false, _) => error(format!("`{shown}` is a command, not KEY=value")),
        }
    }

    fn value(&mut self) -> Result<String> {
        let mut value = String::new();
        let mut home = true; // a `~` here would be a home folder
        while let Some(c) = self.peek() {
            if BLANKS.contains(&c) || self.at_line_end() {
                break;
            }
            if self.continuation() {
                continue;
            }
            self.refuse_expansion(false)?;
            match c {
                '~' if home => return Err(self.expansion("`~` would be replaced by a home folder")),
                '\'' => self.single_quoted(&mut value)?,
                '"' => self.double_quoted(&mut value)?,
                '\\' => {
                    if self.second().is_none() {
                        return Err(self.error("a backslash at the end of the file"));
                    }
                    self.bump();
                    value.extend(self.bump());
                }
                _ if OPERATORS.contains(&c) => {
                    return Err(self.error(format!("`{c}` ends the value, as in a shell")));
                }
                '\r' => {
                    let stray = self.error("a carriage return in the middle of a line");
                    return Err(stray.with_hint("end lines with LF or CRLF"));
                }
                _ => {
                    value.push(c);
                    self.bump();
                }
            }
            home = c == ':';
        }
        Ok(value)
    }

    fn end_of_assignment(&mut self) -> Result<()> {
        self.skip_blanks();
        match self.peek() {
            None | Some('#') => Ok(()),
            Some(_) if self.at_line_end() => Ok(()),
            Some(c) if OPERATORS.contains(&c) => Err(self.error(format!("`{c}` after the value"))),
            Some(_) => Err(self.error("a second word after the value")),
        }
    }

    fn single_quoted(&mut self, value: &mut String) -> Result<()> {
        let open = self.at;
        self.bump();
        loop {
            match self.bump() {
                None => return Err(self.unclosed(open)),
                Some('\'') => return Ok(()),
                Some(c) => value.push(c),
            }
        }
    }

    fn double_quoted(&mut self, value: &mut String) -> Result<()> {
        let open = self.at;
        self.bump();
        loop {
            if self.continuation() {
                continue;
            }
            self.refuse_expansion(true)?;
            match self.bump() {
                None => return Err(self.unclosed(open)),
                Some('"') => return Ok(()),
                // The only characters that a backslash quotes between double quotes (POSIX.1-2017, XCU 2.2.3).
                Some('\\') if self.peek().is_some_and(|c| "$`\"\\".contains(c)) => value.extend(self.bump()),
                Some(c) => value.push(c),
            }
        }
    }

    fn unclosed(&self, open: Position) -> Error {
        at(Code::ConfSyntax, self.file, open, "this quote is never closed").with_hint("add the closing quote")
    }

    fn expansion(&self, what: impl fmt::Display) -> Error {
        at(Code::ConfExpansion, self.file, self.at, what)
            .with_hint("write the literal value, in single quotes where it has such characters")
    }

    fn refuse_expansion(&self, quoted: bool) -> Result<()> {
        // A shell joins lines before it looks for expansions.
        let mut ahead = Cursor { rest: self.rest.clone(), ..*self };
        let first = ahead.bump();
        while ahead.continuation() {}
        match (first, ahead.peek()) {
            (Some('`'), _) => Err(self.expansion("a back quote would run a command")),
            (Some('$'), Some('(')) => Err(self.expansion("`$(` would run a command")),
            (Some('$'), Some('\'' | '"')) if !quoted => {
                Err(self.expansion("`$` before a quote changes its meaning"))
            }
            (Some('$'), Some(c)) if c.is_ascii_alphanumeric() || "_{[@*#?-$!".contains(c) => {
                Err(self.expansion(format!("`${c}` would be replaced by a variable's value")))
            }
            _ => Ok(()),
        }
    }
}
