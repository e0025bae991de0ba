use zbus::message::Header;
use zbus::names::ErrorName;
use zbus::{DBusError, Message};

use super::{BUS_NAME, ERROR_PREFIX};
use crate::error::{Code, Error};

/// The body is one text, because every client shows a text.
#[derive(Debug, Clone)]
pub(super) struct DbusError {
    name: String,
    text: String,
}

impl DbusError {
    /// The same error as from the bus, if its policy forbids a call.
    pub(super) fn denied() -> DbusError {
        DbusError {
            name: "org.freedesktop.DBus.Error.AccessDenied".to_owned(),
            text: format!("only root may call {BUS_NAME}; {}", Code::NotRoot.remedy()),
        }
    }

    pub(super) fn usage(why: impl Into<String>) -> DbusError {
        Error::new(Code::Usage, why).with_hint("see docs/dbus.md").into()
    }
}

/// One line: message, code, object and remedy.
pub(super) fn text_of(e: &Error) -> String {
    let message = e.message();
    let object = e.subject().filter(|object| !message.contains(object));
    let object = object.map(|object| format!(" ({object})")).unwrap_or_default();
    format!("{message} [{}]{object}; {}", e.code(), e.hint())
}

impl From<Error> for DbusError {
    fn from(e: Error) -> Self {
        DbusError { name: name_of(e.code_word()), text: text_of(&e) }
    }
}

/// Errors of the bus. The caller cannot fix them.
impl From<zbus::Error> for DbusError {
    fn from(e: zbus::Error) -> Self {
        Error::new(Code::BusUnreachable, "cannot answer over D-Bus").because(e).into()
    }
}

impl DBusError for DbusError {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, self.name()).build(&(&self.text,))
    }

    fn name(&self) -> ErrorName<'_> {
        ErrorName::try_from(self.name.as_str())
            .unwrap_or_else(|_| ErrorName::from_static_str_unchecked("org.freedesktop.DBus.Error.Failed"))
    }

    fn description(&self) -> Option<&str> {
        Some(&self.text)
    }
}

fn name_of(code: &str) -> String {
    let mut name = ERROR_PREFIX.to_owned();
    for word in code.split('-') {
        let mut letters = word.chars();
        name.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_on_one_line_has_its_four_parts() {
        let error =
            |message, object| Error::new(Code::Busy, message).object(object).with_hint("wait; call again");
        assert_eq!(
            text_of(&error("cannot begin: job 1 is under way", "/job/1")),
            "cannot begin: job 1 is under way [busy] (/job/1); wait; call again"
        );
        assert_eq!(text_of(&error("cannot read /a/b", "/a/b")), "cannot read /a/b [busy]; wait; call again");
    }

    #[test]
    fn every_code_makes_a_name_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for code in Code::ALL {
            let fault = DbusError::from(Error::new(*code, "x"));
            assert_eq!(fault.name().as_str(), fault.name);
            assert!(seen.insert(fault.name));
        }
        assert_eq!(name_of("target-too-small"), "io.balena.Copal1.Error.TargetTooSmall");
    }
}
