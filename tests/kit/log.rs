//! What is logged.
#![allow(dead_code)] // no test program uses all of it

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tracing_subscriber::{Registry, layer::Context, layer::Layer, layer::SubscriberExt as _};

/// A line of the log: `LEVEL message`, and the fields of the journal.
#[derive(Debug, Clone)]
pub struct Line {
    pub text: String,
    pub fields: BTreeMap<&'static str, String>,
}

impl Line {
    /// A field; empty where it is missing.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// What `job` logs on this thread.
pub fn lines<T>(job: impl FnOnce() -> T) -> (T, Vec<Line>) {
    let log = Log::default();
    let value = tracing::subscriber::with_default(Registry::default().with(log.clone()), job);
    let lines = log.0.lock().unwrap().clone();
    (value, lines)
}

/// The same, without the fields.
pub fn logged<T>(job: impl FnOnce() -> T) -> (T, Vec<String>) {
    let (value, lines) = lines(job);
    (value, lines.into_iter().map(|l| l.text).collect())
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Line>>>);

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Fields(BTreeMap<&'static str, String>);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.insert(field.name(), format!("{value:?}"));
            }
            fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
                self.0.insert(field.name(), value.to_owned());
            }
        }
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let text = format!("{} {message}", event.metadata().level());
        self.0.lock().unwrap().push(Line { text, fields: fields.0 });
    }
}
