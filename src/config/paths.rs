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

    /// The mounted boot partition of the medium.
    #[must_use]
    pub fn boot(&self) -> PathBuf {
        self.at("/mnt/boot")
    }

    /// The file whose presence says that `boot` belongs to a flasher medium.
    #[must_use]
    pub fn flasher_flag(&self) -> PathBuf {
        self.at("/mnt/boot/balena-image-flasher")
    }

    /// `config.json` of a running system.
    #[must_use]
    pub fn config_json(&self) -> PathBuf {
        self.at("/mnt/boot/config.json")
    }

    /// `config.json` while a flasher medium runs: a copy in memory, since the medium itself is not written to.
    #[must_use]
    pub fn flasher_config_json(&self) -> PathBuf {
        self.at("/mnt/boottmp/config.json")
    }
}

impl Default for Paths {
    fn default() -> Self {
        Paths::new("/")
    }
}
