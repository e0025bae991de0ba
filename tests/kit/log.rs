//! A root folder with programs, and the log.
#![allow(dead_code)] // no test program uses all of it

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tracing_subscriber::{Registry, layer::Context, layer::Layer, layer::SubscriberExt as _};

/// A root folder.
pub struct Root(TempDir);

impl Root {
    pub fn new() -> Self {
        Root(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    /// A file with `text`, mode 0755. Another process writes it: a descriptor that is open for writing in this one
    /// would be open for an instant in what other tests start, and the kernel would not run the file (ETXTBSY).
    pub fn program(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let status = Command::new("sh")
            .args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .arg(text)
            .status()
            .unwrap();
        assert!(status.success());
        path
    }

    /// What the file holds; nothing where it is missing.
    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap_or_default()
    }
}

/// Whether a process with this number runs (a zombie does not).
pub fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|s| !s.contains(") Z "))
}

/// Waits until `true`, a minute at most.
pub fn soon(mut is: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        if is() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// What `job` logs on this thread, as `LEVEL message`.
pub fn logged<T>(job: impl FnOnce() -> T) -> (T, Vec<String>) {
    let log = Log::default();
    let value = tracing::subscriber::with_default(Registry::default().with(log.clone()), job);
    let lines = log.0.lock().unwrap().clone();
    (value, lines)
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(format!("{} {}", event.metadata().level(), message.0));
    }
}
