//! Errors as answers to a call.

use zbus::message::Header;
use zbus::names::ErrorName;
use zbus::{DBusError, Message};

use super::ERROR_PREFIX;
use crate::error::{Code, Error};

/// Why a call was not carried out.
#[derive(Debug)]
pub(super) struct Fault {
    name: String,
    text: String,
    message: String,
    object: String,
    hint: String,
}

impl Fault {
    /// As the bus itself refuses a call that its policy does not allow.
    pub(super) fn denied(what: &str) -> Fault {
        let text = format!("only root may {what}");
        Fault {
            name: "org.freedesktop.DBus.Error.AccessDenied".to_owned(),
            message: text.clone(),
            text,
            object: String::new(),
            hint: Code::NotRoot.remedy().to_owned(),
        }
    }

    pub(super) fn usage(why: impl Into<String>) -> Fault {
        Error::new(Code::Usage, why).with_hint("see docs/dbus.md").into()
    }

    /// An error that a child process has told.
    pub(super) fn told(code: &str, message: &str, object: &str, hint: &str) -> Fault {
        Fault {
            name: name_of(code),
            text: format!("{message} [{code}]; {hint}"),
            message: message.to_owned(),
            object: object.to_owned(),
            hint: hint.to_owned(),
        }
    }
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Fault::told(e.code().as_str(), &e.message(), e.subject().unwrap_or_default(), e.hint())
    }
}

/// Of the bus, about which the caller can do nothing.
impl From<zbus::Error> for Fault {
    fn from(e: zbus::Error) -> Self {
        Error::new(Code::BusUnreachable, "cannot answer over D-Bus").because(e).into()
    }
}

impl DBusError for Fault {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        let body = (&self.text, &self.message, &self.object, &self.hint);
        Message::error(call, self.name()).build(&body)
    }

    fn name(&self) -> ErrorName<'_> {
        ErrorName::try_from(self.name.as_str())
            .unwrap_or_else(|_| ErrorName::from_static_str_unchecked("org.freedesktop.DBus.Error.Failed"))
    }

    fn description(&self) -> Option<&str> {
        Some(&self.text)
    }
}

/// `target-too-small` is `io.balena.Copal1.Error.TargetTooSmall`.
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
    fn every_code_makes_a_name_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for code in Code::ALL {
            let fault = Fault::from(Error::new(*code, "x"));
            assert_eq!(fault.name().as_str(), fault.name);
            assert!(seen.insert(fault.name));
        }
        assert_eq!(name_of("target-too-small"), "io.balena.Copal1.Error.TargetTooSmall");
    }
}
