use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use tracing::Event;
use tracing::field::{Field, Visit};

/// Fields with names in capitals are for the journal only; all others are part of the text.
#[derive(Default)]
pub(super) struct Text {
    message: String,
    fields: String,
    journal: Vec<(&'static str, String)>,
}

impl Text {
    pub(super) fn of(event: &Event<'_>) -> Self {
        let mut text = Text::default();
        event.record(&mut text);
        text
    }

    pub(super) fn line(&self) -> String {
        format!("{}{}", self.message, self.fields).trim_start().to_owned()
    }

    pub(super) fn journal(&self) -> &[(&'static str, String)] {
        &self.journal
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let name = field.name();
        if name == "message" {
            self.message.push_str(&format!("{value:?}"));
        } else if is_of_the_journal(name) {
            self.journal.push((name, format!("{value:?}")));
        } else {
            self.fields.push_str(&format!(" {name}={value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

/// Field names that the journal accepts from a program: capitals, digits and `_`, a capital first.
fn is_of_the_journal(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Escapes control characters and invisible ones: names, labels and serial numbers come from images, media and devices, and must not control a
/// terminal, forge a line, or look like another name.
#[must_use]
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden, |c, out| out.extend(c.escape_default()))
}

/// [`printable`] of a path.
#[must_use]
pub(crate) fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// [`printable`] of each line.
#[must_use]
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c != '\n' && is_hidden(c), |c, out| out.extend(c.escape_default()))
}

/// The same JSON for a terminal: JSON itself escapes control characters up to U+001F only.
#[must_use]
pub(crate) fn printable_json(json: &str) -> Cow<'_, str> {
    escaped(
        json,
        |c| c != '\n' && is_hidden(c),
        |c, out| {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        },
    )
}

fn escaped(text: &str, is_hidden: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.chars().any(&is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_hidden(c) { escape(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Control characters, line separators, and what Unicode has in its category "format": joiners without width, directions of text, tags.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::Subscriber;
    use tracing_subscriber::layer::{Context, SubscriberExt as _};
    use tracing_subscriber::{Layer, Registry};

    use super::*;

    #[test]
    fn control_characters_of_others_are_escaped() {
        assert_eq!(printable("Käse /dev/sda"), "Käse /dev/sda");
        assert_eq!(printable("a\x1b[2Jb\nc\u{9b}1m"), "a\\u{1b}[2Jb\\nc\\u{9b}1m");
        assert_eq!(printable("gnp\u{202e}.exe a\u{200b}b"), "gnp\\u{202e}.exe a\\u{200b}b");
        assert_eq!(printable_lines("a\nb\r"), "a\nb\\r");
        let json = printable_json("{\"a\":\"\u{9b}\u{e0001}\"}").into_owned();
        assert_eq!(json, "{\"a\":\"\\u009b\\udb40\\udc01\"}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["a"], "\u{9b}\u{e0001}");
    }

    #[test]
    fn names_in_capitals_are_the_journals() {
        for name in ["MESSAGE_ID", "COPAL_DEVICE", "A1"] {
            assert!(is_of_the_journal(name), "{name}");
        }
        for name in ["message", "Device", "_PID", "1A", "A.B", ""] {
            assert!(!is_of_the_journal(name), "{name}");
        }
    }

    fn logged(work: impl FnOnce()) -> Vec<(String, Vec<(&'static str, String)>)> {
        type Kept = Arc<Mutex<Vec<(String, Vec<(&'static str, String)>)>>>;
        struct Keep(Kept);
        impl<S: Subscriber> Layer<S> for Keep {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                let text = Text::of(event);
                self.0.lock().unwrap().push((text.line(), text.journal().to_vec()));
            }
        }
        let kept = Kept::default();
        tracing::subscriber::with_default(Registry::default().with(Keep(kept.clone())), work);
        Arc::into_inner(kept).unwrap().into_inner().unwrap()
    }

    #[test]
    fn the_message_comes_before_its_fields_and_the_journals_stand_aside() {
        let logged = logged(|| {
            tracing::warn!(offset = 512, device = "/dev/sda", "read {}", "again");
            tracing::warn!(offset = 7);
            let unknown: Option<u8> = None;
            tracing::info!(
                COPAL_STAGE = "write", COPAL_PERCENT = unknown, COPAL_DEVICE = %"/dev/sdb", COPAL_OFFSET = 5_u64,
                "write: begins"
            );
        });
        assert_eq!(logged[0], ("read again offset=512 device=/dev/sda".to_owned(), vec![]));
        assert_eq!(logged[1], ("offset=7".to_owned(), vec![]));
        let fields = [("COPAL_STAGE", "write"), ("COPAL_DEVICE", "/dev/sdb"), ("COPAL_OFFSET", "5")];
        let mut found = logged[2].1.clone();
        found.sort_by_key(|(k, _)| fields.iter().position(|(f, _)| f == k));
        assert_eq!(logged[2].0, "write: begins");
        assert_eq!(found, fields.map(|(k, v)| (k, v.to_owned())));
    }
}
