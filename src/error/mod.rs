//! Errors with stable codes.
//!
//! Every failure that a user can see is an [`Error`]: one sentence that names the failed action and its object, the cause, and
//! the remedy. The code is part of the interface: scripts branch on it, and `docs/errors.md` explains it.

mod code;
pub mod exit;

use std::fmt;

pub use code::Code;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The state of the target at the time of the failure. It decides the exit code of `copal …` verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Nothing was written (exit code 3).
    Refused,
    /// Writing had begun; the target has no partition table, or the message says that one may be left (exit code 4).
    Written,
    /// The job itself succeeded; a later step failed (exit code 1).
    Completed,
}

impl Effect {
    const ALL: [Effect; 3] = [Effect::Refused, Effect::Written, Effect::Completed];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Effect::Refused => "refused",
            Effect::Written => "written",
            Effect::Completed => "completed",
        }
    }

    #[must_use]
    pub fn named(word: &str) -> Option<Effect> {
        Effect::ALL.into_iter().find(|e| e.as_str() == word)
    }
}

/// One failure, to be shown once.
#[derive(Debug)]
pub struct Error {
    code: Code,
    message: String,
    object: Option<String>,
    hint: Option<String>,
    note: Option<String>,
    effect: Effect,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// A failure before any write. `message` names the failed action and its object.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error {
            code,
            message: message.into(),
            object: None,
            hint: None,
            note: None,
            effect: Effect::Refused,
            source: None,
        }
    }

    /// Path, device or key, for machines.
    #[must_use]
    pub fn object(mut self, object: impl fmt::Display) -> Self {
        self.object = Some(object.to_string());
        self
    }

    /// Replaces the remedy of the code where that is not exact enough.
    #[must_use]
    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub(crate) fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds a clause to the message, after earlier ones.
    #[must_use]
    pub(crate) fn and_also(mut self, text: &str) -> Self {
        self.note = Some(match self.note {
            Some(before) => format!("{before}; {text}"),
            None => text.to_owned(),
        });
        self
    }

    /// Writing to the target had begun.
    #[must_use]
    pub(crate) fn after_write(mut self) -> Self {
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
        self.hint.as_deref().unwrap_or(self.code.remedy())
    }

    /// The message with its chain of causes, on one line, without code and remedy, also where a cause is the last line of a program that
    /// ended with an error of ours.
    #[must_use]
    pub fn message(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(c) = cause {
            text.push_str(": ");
            text.push_str(up_to_code(&c.to_string()));
            cause = c.source();
        }
        if let Some(note) = &self.note {
            text.push_str("; ");
            text.push_str(note);
        }
        text.replace(['\n', '\r'], " ")
    }
}

/// Our own line of an error up to its code; any other text as it is.
fn up_to_code(line: &str) -> &str {
    let mut parts = line.match_indices(" [").map(|(at, _)| line.split_at(at));
    let begins_with_code = |rest: &str| {
        let word = rest.strip_prefix(" [").and_then(|rest| rest.split_once("]; "));
        word.is_some_and(|(word, _)| Code::named(word).is_some())
    };
    parts.find(|(_, rest)| begins_with_code(rest)).map_or(line, |(before, _)| before)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]; {}", self.message(), self.code, self.hint())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}

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
        for effect in Effect::ALL {
            assert_eq!(Effect::named(effect.as_str()), Some(effect));
        }
        assert_eq!(Effect::named(""), None);
    }
}
