//! Errors with stable codes.
//!
//! Every failure that a user can see is an [`Error`]: one sentence that names the failed action and its object, the cause, and
//! the remedy. The code is part of the interface: scripts branch on it, and `docs/errors.md` explains it.

mod code;
pub mod exit;
mod wire;

use std::error::Error as StdError;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use code::Code;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The state of the target at the time of the failure. It decides the exit code of `copal …` verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Nothing was written (exit code 3).
    Refused,
    /// The job itself succeeded; a later step failed (exit code 1).
    Completed,
    /// Writing had begun; the target has no partition table, or the message says that one may be left (exit code 4). It is assumed where the
    /// word is of a later release.
    #[serde(other)]
    Written,
}

impl Effect {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Effect::Refused => "refused",
            Effect::Written => "written",
            Effect::Completed => "completed",
        }
    }
}

/// One failure, to be shown once. A serialised error is read back equal, in another process and by another release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "wire::Wire", from = "wire::Wire")]
pub struct Error {
    code: Code,
    /// The word of another release, whose meaning is unknown here; `code` is then [`Code::Io`].
    foreign_code: Option<Box<str>>,
    /// The failed action and its object.
    summary: Box<str>,
    /// From the outermost to the innermost.
    causes: Vec<String>,
    /// What else the reader must know.
    notes: Vec<String>,
    object: Option<Box<str>>,
    hint: Box<str>,
    effect: Effect,
}

impl Error {
    /// A defect of copal: a value that cannot be missing is.
    pub(crate) fn internal(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Error::new(Code::Internal, "internal error").because(cause)
    }

    /// A failure before any write. `summary` names the failed action and its object.
    pub fn new(code: Code, summary: impl Into<String>) -> Self {
        Error {
            code,
            foreign_code: None,
            summary: summary.into().into(),
            causes: Vec::new(),
            notes: Vec::new(),
            object: None,
            hint: code.remedy().into(),
            effect: Effect::Refused,
        }
    }

    /// Path, device or key, for machines.
    #[must_use]
    pub fn object(mut self, object: impl fmt::Display) -> Self {
        self.object = Some(object.to_string().into());
        self
    }

    /// Replaces the remedy of the code where that is not exact enough.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into().into();
        self
    }

    /// Adds a cause, and the causes of that. Of an error of our own, neither code nor remedy remains; but a hook that was ours knows the remedy.
    #[must_use]
    pub(crate) fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        match source.into().downcast::<Error>() {
            Ok(own) => {
                self.causes.push(own.summary.into());
                self.causes.extend(own.causes);
                self.notes.extend(own.notes);
            }
            Err(source) => {
                let mut next: Option<&dyn StdError> = Some(&*source);
                while let Some(cause) = next {
                    let said = cause.to_string();
                    let (message, remedy) = at_code(&said);
                    self.causes.push(message.to_owned());
                    if let (Code::HookFailed, Some(remedy)) = (self.code, remedy) {
                        self.hint = one_line(remedy).into();
                    }
                    next = cause.source();
                }
            }
        }
        self
    }

    /// Adds a clause to the message, after earlier ones.
    #[must_use]
    pub(crate) fn and_also(mut self, text: &str) -> Self {
        self.notes.push(text.to_owned());
        self
    }

    /// Cuts object and hint to `most` bytes each, and the parts of the message to `space` bytes in all: the summary first. Parts without space
    /// are left out. `cut` shortens a text.
    pub(crate) fn shorten(&mut self, most: usize, mut space: usize, cut: impl Fn(&str, usize) -> String) {
        self.object = self.object.as_deref().map(|object| cut(object, most).into());
        self.hint = cut(&self.hint, most).into();
        let mut take = |text: &str| {
            let text = cut(&one_line(text), space);
            space = space.saturating_sub(text.len());
            text
        };
        self.summary = take(&self.summary).into();
        for parts in [&mut self.causes, &mut self.notes] {
            parts.retain_mut(|part| {
                let had_text = !part.is_empty();
                *part = take(part);
                !(had_text && part.is_empty())
            });
        }
    }

    /// Writing to the target had begun.
    #[must_use]
    pub(crate) fn after_write(mut self) -> Self {
        debug_assert!(!self.code.never_after_write(), "{self}");
        self.effect = Effect::Written;
        self
    }

    /// The job itself had succeeded.
    #[must_use]
    pub fn after_success(mut self) -> Self {
        self.effect = Effect::Completed;
        self
    }

    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.effect = effect;
        self
    }

    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.object.as_deref()
    }

    #[must_use]
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// The summary with its causes and notes, on one line, without code and remedy.
    #[must_use]
    pub fn message(&self) -> String {
        let mut text = self.summary.clone().into_string();
        let causes = self.causes.iter().map(|cause| (": ", cause));
        for (sign, part) in causes.chain(self.notes.iter().map(|note| ("; ", note))) {
            text.push_str(sign);
            text.push_str(part);
        }
        one_line(&text)
    }

    /// The stable code, also one of another release.
    #[must_use]
    pub fn code_word(&self) -> &str {
        self.foreign_code.as_deref().unwrap_or(self.code.as_str())
    }
}

/// A number with a noun, whose plural ends with an s.
pub(crate) fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// The last line of a program that failed may be an error of ours: that line up to its code, and the remedy. Any other text as it is.
fn at_code(line: &str) -> (&str, Option<&str>) {
    let parts = |(at, _)| {
        let (before, rest) = line.split_at(at);
        let (word, remedy) = rest.strip_prefix(" [")?.split_once("]; ")?;
        Code::named(word).map(|_| (before, Some(remedy)))
    };
    line.match_indices(" [").find_map(parts).unwrap_or((line, None))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]; {}", self.message(), self.code_word(), self.hint())
    }
}

impl StdError for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_with_object_cause_code_and_remedy() {
        let e = Error::new(Code::TargetMounted, "cannot flash /dev/sda")
            .object("/dev/sda")
            .because(std::io::Error::other("mounted\nat /mnt"));
        assert_eq!(
            e.to_string(),
            "cannot flash /dev/sda: mounted at /mnt [target-mounted]; unmount it first"
        );
        assert_eq!(e.effect(), Effect::Refused);
        assert_eq!(e.after_write().effect(), Effect::Written);
    }

    #[test]
    fn an_error_inside_another_has_no_code_and_no_remedy() {
        let inner = Error::new(Code::BootFilesInvalid, "cannot deploy [x]; y").and_also("1 MiB is lacking");
        let line = format!("exit status 1, after it said: {inner}");
        let outer = Error::new(Code::HookFailed, "the hook failed").because(std::io::Error::other(line));
        let outer = outer.and_also("slot A boots next");
        let said = "the hook failed: exit status 1, after it said: cannot deploy [x]; y; 1 MiB is lacking; slot A boots next";
        assert_eq!(outer.message(), said);
        assert_eq!(outer.hint(), inner.hint(), "what helps against the failure inside");
        let other = Error::new(Code::Io, "x").because(std::io::Error::other(inner.to_string()));
        assert_eq!(other.hint(), Code::Io.remedy());
        let plain = "cannot mount it [read-only]; try again";
        let outer = Error::new(Code::HookFailed, "the hook failed").because(std::io::Error::other(plain));
        assert_eq!(outer.message(), format!("the hook failed: {plain}"));
    }

    #[test]
    fn whatever_is_added_is_shown() {
        let e = Error::new(Code::Io, "cannot do it").because(std::io::Error::other("why"));
        let e = e.and_also("this is left").and_also("and that");
        assert_eq!(e.message(), "cannot do it: why; this is left; and that");
    }

    #[test]
    fn the_summary_gets_its_space_first() {
        let cut = |text: &str, most: usize| text.chars().take(most).collect::<String>();
        let e = Error::new(Code::Io, "cannot\nread").object("/a/long/path").with_hint("look there");
        let mut e = e.because("a first cause").because("a second cause").and_also("a note");
        e.shorten(6, 14, cut);
        assert_eq!((e.message().as_str(), e.causes.len()), ("cannot read: a f", 1));
        assert_eq!((e.subject(), e.hint()), (Some("/a/lon"), "look t"));
    }

    #[test]
    fn codes_are_unique_kebab_case() {
        let mut seen = std::collections::HashSet::new();
        for &code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code} twice");
            assert!(code.as_str().bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{code}");
            assert!(!code.remedy().is_empty());
            assert!(code.cause().len() > 20 && code.cause().ends_with('.'), "{code}: {}", code.cause());
            assert_eq!(Code::named(code.as_str()), Some(code));
        }
        assert_eq!(Code::named("no-such-code"), None);
    }
}
