//! The well-known paths, all below one root folder, so that the whole program runs against a folder tree in a test.

use std::path::{Path, PathBuf};

/// Well-known paths below a root (`/` on a device).
#[derive(Debug, Clone)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    /// Paths below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Paths { root: root.into() }
    }

    /// The root itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// An absolute path of the device, below the root.
    #[must_use]
    pub fn at(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let p = absolute.as_ref();
        self.root.join(p.strip_prefix("/").unwrap_or(p))
    }

    /// The board's flasher configuration.
    #[must_use]
    pub fn flasher_conf(&self) -> PathBuf {
        self.at("/etc/resin-init-flasher.conf")
    }
}

impl Default for Paths {
    fn default() -> Self {
        Paths::new("/")
    }
}
