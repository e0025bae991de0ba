//! The well-known paths. All are below one root folder, so that tests run the whole program in a folder tree.

use std::path::{Path, PathBuf};

use crate::sys::mount;

#[derive(Debug, Clone)]
pub struct Paths {
    root: PathBuf,
}

impl Paths {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Paths { root: root.into() }
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    #[must_use]
    pub fn at(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let p = absolute.as_ref();
        self.root.join(p.strip_prefix("/").unwrap_or(p))
    }

    #[must_use]
    pub fn flasher_conf(&self) -> PathBuf {
        self.at("/etc/resin-init-flasher.conf")
    }

    #[must_use]
    pub fn boot(&self) -> PathBuf {
        self.at("/mnt/boot")
    }

    /// Exists if `boot` belongs to a flasher medium.
    #[must_use]
    pub fn flasher_flag(&self) -> PathBuf {
        self.at("/mnt/boot/balena-image-flasher")
    }

    #[must_use]
    pub fn config_json(&self) -> PathBuf {
        self.at("/mnt/boot/config.json")
    }

    /// While a flasher medium runs: a copy in memory, because the medium is not written to.
    #[must_use]
    pub(crate) fn flasher_config_json(&self) -> PathBuf {
        self.at("/mnt/boottmp/config.json")
    }

    /// The state partition: small files that survive an update.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.at("/mnt/state")
    }

    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.at("/mnt/data")
    }

    /// The root file system of the inactive slot.
    #[must_use]
    pub fn inactive(&self) -> PathBuf {
        self.at("/mnt/sysroot/inactive")
    }

    #[must_use]
    pub fn active(&self) -> PathBuf {
        self.at("/mnt/sysroot/active")
    }

    /// copal's own files on the state partition.
    #[must_use]
    pub fn state_files(&self) -> PathBuf {
        self.at("/mnt/state/copal")
    }

    /// copal's own files until the next boot.
    #[must_use]
    pub(crate) fn run_files(&self) -> PathBuf {
        self.at("/run/copal")
    }

    /// The mounted boot partition that is not encrypted, which the bootloader can read. The same as [`boot`](Self::boot) unless
    /// the disk is encrypted and the boot partition was split.
    #[must_use]
    pub fn plain_boot(&self) -> PathBuf {
        let named = std::env::var_os(PLAIN_BOOT_VARIABLE).filter(|v| !v.is_empty());
        if let Some(named) = named {
            return self.at(PathBuf::from(named));
        }
        let mounts = mount::read_mounts(&self.at("/proc/self/mountinfo")).unwrap_or_default();
        let mounted = |p: &&&str| mounts.iter().any(|m| m.point == Path::new(**p));
        self.at(PLAIN_BOOT_POINTS.iter().find(mounted).unwrap_or(&"/mnt/boot"))
    }
}

/// The system's shell parts have the mount point in this variable (`balena-config-defaults`).
const PLAIN_BOOT_VARIABLE: &str = "BALENA_NONENC_BOOT_MOUNTPOINT";

/// Where boards with encryption mount their unencrypted boot partition: `/mnt/` and its label without `balena-` (meta-balena,
/// `BALENA_NONENC_BOOT_MOUNT`). Nothing else is ever mounted there.
const PLAIN_BOOT_POINTS: [&str; 3] = ["/mnt/efi", "/mnt/rpi", "/mnt/imx"];

impl Default for Paths {
    fn default() -> Self {
        Paths::new("/")
    }
}
