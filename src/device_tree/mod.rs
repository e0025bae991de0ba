//! Device trees of the owner: what the settings on the boot partition name, and where the files are.
//!
//! An update makes a new boot folder with the release's files. The settings stay, so that what they name has to stay, too.

mod extra_uenv;

use std::path::{Path, PathBuf};

pub use crate::config::update_conf::{DeviceTreeKey as Key, DeviceTreePlace as Place};

use crate::config::paths::Paths;
use crate::config::update_conf::{UpdateConf, plain_path};

/// A file that a setting names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Below the boot folder of a root, or below the boot partition.
    pub path: PathBuf,
    pub key: Key,
    /// Whether the board's bootloader takes this setting, and is sure to apply it. What does not count is carried, and refuses nothing.
    pub counts: bool,
    pub place: Place,
}

/// A setting that names no plain path: copal does not carry it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub name: String,
    pub key: Key,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub named: Vec<Named>,
    pub refused: Vec<Refused>,
    /// The board's other files of the boot folder.
    pub others: Vec<PathBuf>,
    /// Whether the bootloader does not boot without a file that counts.
    pub required: bool,
}

impl Wanted {
    /// Whether the device does not boot without this file.
    #[must_use]
    pub fn is_required(&self, named: &Named) -> bool {
        self.required && named.counts
    }
}

impl Named {
    /// Where the bootloader looks for it, in its order. `root_boot` is the boot folder of the root that it boots.
    #[must_use]
    pub fn places(&self, paths: &Paths, root_boot: &Path) -> Vec<PathBuf> {
        let root = root_boot.join(&self.path);
        let boot = paths.plain_boot().join(&self.path);
        match self.place {
            Place::Root => vec![root],
            Place::BootFirst => vec![boot, root],
            Place::Boot => vec![boot],
        }
    }

    /// Whether an update has to carry it, should the release lack it.
    #[must_use]
    pub fn is_in_root(&self) -> bool {
        self.place != Place::Boot
    }
}

/// The boot folder of the running root.
#[must_use]
pub fn running_boot(paths: &Paths) -> PathBuf {
    paths.active().join("current/boot")
}

/// What the owner's settings on the boot partition name, as the board's bootloader reads them. A file that cannot be read names nothing.
#[must_use]
pub fn wanted(paths: &Paths) -> Wanted {
    let conf = UpdateConf::read(paths).unwrap_or_else(|e| {
        tracing::warn!("{}; every key of the file has its default", e.message());
        UpdateConf::default()
    });
    let mut wanted = Wanted {
        named: Vec::new(),
        refused: Vec::new(),
        others: conf.carry_boot.clone(),
        required: conf.device_tree_required,
    };
    for (key, name) in extra_uenv::names(&paths.plain_boot()) {
        wanted.add(key, &name, &conf);
    }
    wanted
}

impl Wanted {
    fn add(&mut self, key: Key, name: &str, conf: &UpdateConf) {
        let counts = conf.device_tree_keys.contains(&key);
        let Some(path) = plain_path(name) else {
            let refused = Refused { name: name.to_owned(), key };
            if !self.refused.contains(&refused) {
                self.refused.push(refused);
            }
            return;
        };
        let place = match key {
            Key::DeviceTree | Key::Dtoverlay => Place::Boot,
            _ => conf.device_tree_place,
        };
        if !self.named.iter().any(|n| n.path == path && n.key == key) {
            self.named.push(Named { path, key, counts, place });
        }
    }
}
