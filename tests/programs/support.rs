//! Programs in a folder, and the log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A root folder.
pub(crate) struct Root(TempDir);

impl Root {
    pub(crate) fn new() -> Self {
        Root(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path.trim_start_matches('/'))
    }

    /// A file with `text`, mode 0755. Another process writes it: a descriptor that is open for writing in this one
    /// would be open for an instant in what other tests start, and the kernel would not run the file (ETXTBSY).
    pub(crate) fn program(&self, path: &str, text: &str) -> PathBuf {
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
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap_or_default()
    }
}

/// Whether a process with this number runs (a zombie does not).
pub(crate) fn runs(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|s| !s.contains(") Z "))
}

/// Waits until `true`, ten seconds at most.
pub(crate) fn soon(mut is: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        if is() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}
