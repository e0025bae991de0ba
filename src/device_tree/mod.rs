//! Device trees of the owner: what the settings on the boot partition name, and where the files are.
//!
//! An update makes a new boot folder with the release's files. The settings stay, so the files that they name must also stay.

pub mod blob;
mod carry;
mod config_txt;
mod damage;
mod extlinux;
mod extra_uenv;
pub mod live;
mod new_release;
pub mod pins;
mod report;

use std::io;
use std::path::{Path, PathBuf};

pub use crate::config::update_conf::{DeviceTreeKey as Key, DeviceTreePlace as Place};
pub use carry::{Carried, Outcome};
pub use new_release::{NewRelease, settle};

pub(crate) use damage::damage;
pub(crate) use report::{Content, Origin, Tree, content, of_release};

use crate::config::paths::Paths;
use crate::config::update_conf::{UpdateConf, plain_path};
use crate::sys::file::{self, Folder};

/// A file that a setting names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Below the boot folder of a root, or below the boot partition.
    pub path: PathBuf,
    pub key: Key,
    /// Whether the board's bootloader takes this setting, and is sure to apply it. A file that does not count is carried, but its absence refuses no update.
    pub counts: bool,
    pub place: Place,
}

/// A setting that names no plain path: copal does not carry it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    pub name: String,
    pub key: Key,
    /// As of [`Named`].
    pub counts: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedFiles {
    pub named: Vec<Named>,
    pub refused: Vec<Refused>,
    /// Files of settings that cannot be read, each with the reason.
    pub unread: Vec<String>,
    /// The board's other files of the boot folder.
    pub others: Vec<PathBuf>,
    /// Whether the bootloader does not boot without a file that counts.
    pub required: bool,
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

/// What the owner's settings on the boot partition name, as the board's bootloader reads them. Warns of what cannot be read.
#[must_use]
pub fn expected_files(paths: &Paths) -> ExpectedFiles {
    let expected = ExpectedFiles::read(paths);
    for unread in &expected.unread {
        tracing::warn!("{unread}");
    }
    expected
}

fn setting(boot: &Path, path: &str) -> io::Result<Option<Vec<u8>>> {
    let path = boot.join(path);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    match Folder::open_to_read(folder) {
        Ok(folder) => file::current_content(&folder, name),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(e),
    }
}

/// No device has a tenth of it.
const MOST_NAMES: usize = 512;

/// Files of the boot partition, by plain path.
struct Files<'r> {
    read: &'r mut dyn FnMut(&str) -> io::Result<Option<Vec<u8>>>,
    unread: Vec<String>,
}

impl Files<'_> {
    /// Nothing for a file that is not there.
    fn read(&mut self, path: &str) -> Vec<u8> {
        match (self.read)(path) {
            Ok(content) => content.unwrap_or_default(),
            Err(e) => {
                let unread =
                    format!("cannot read {path} on the boot partition, and what it names is not known: {e}");
                if !self.unread.contains(&unread) {
                    self.unread.push(unread);
                }
                Vec::new()
            }
        }
    }

    fn has(&mut self, path: &str) -> bool {
        !matches!((self.read)(path), Ok(None))
    }
}

impl ExpectedFiles {
    /// As [`expected_files`], without warnings.
    #[must_use]
    pub(crate) fn read(paths: &Paths) -> ExpectedFiles {
        let (conf, wrong) = match UpdateConf::read(paths) {
            Ok(conf) => (conf, None),
            Err(e) => (
                UpdateConf::default(),
                Some(format!("{}; every key of the file has its default", e.message())),
            ),
        };
        let boot = paths.plain_boot();
        let mut expected =
            ExpectedFiles::of_files(&conf, extra_uenv::is_searched(paths), &mut |path| setting(&boot, path));
        expected.unread.extend(wrong);
        expected
    }

    /// The same, for files from anywhere: `read` has the content of each that is there. `is_searched`: the UEFI of a Tegra has started the device.
    pub fn of_files(
        conf: &UpdateConf,
        is_searched: bool,
        read: &mut dyn FnMut(&str) -> io::Result<Option<Vec<u8>>>,
    ) -> ExpectedFiles {
        let mut files = Files { read, unread: Vec::new() };
        let mut expected = ExpectedFiles {
            named: Vec::new(),
            refused: Vec::new(),
            unread: Vec::new(),
            others: conf.carry_boot.clone(),
            required: conf.device_tree_required,
        };
        extra_uenv::read(&mut files, is_searched, &mut |found| expected.add(found, conf));
        extlinux::read(&mut files, &mut |found| expected.add(found, conf));
        config_txt::read(&mut files, &mut |found| expected.add(found, conf));
        expected.unread.extend(files.unread);
        expected
    }

    /// Whether the device does not boot without this file.
    #[must_use]
    pub fn is_required(&self, named: &Named) -> bool {
        self.required && named.counts
    }

    fn add(&mut self, found: Found, conf: &UpdateConf) {
        if self.named.len() + self.refused.len() >= MOST_NAMES {
            let text =
                format!("the settings name more than {MOST_NAMES} files, and the others are not known");
            if !self.unread.contains(&text) {
                self.unread.push(text);
            }
            return;
        }
        let counts = found.sure && conf.device_tree_keys.contains(&found.key);
        let name = found.name.as_str();
        let place = match (found.key, name.starts_with('/')) {
            (Key::DeviceTree | Key::Dtoverlay, _) => Place::Boot,
            // For U-Boot it begins at the top of the partition, where a root has nothing of ours but its folder `boot`.
            (Key::Fdt, true) if !name.starts_with("/boot/") => Place::Boot,
            _ => conf.device_tree_place,
        };
        let name = match found.key {
            Key::Fdt | Key::DeviceTree | Key::Dtoverlay => name.strip_prefix('/').unwrap_or(name),
            // UEFI looks for them from the top of the root, with either separator.
            Key::OverlayFiles => {
                ["/boot/", "\\boot\\"].iter().find_map(|top| name.strip_prefix(top)).unwrap_or(name)
            }
            _ => name,
        };
        let from_top = matches!(found.key, Key::OverlayFiles | Key::Fdtofile | Key::Fdt);
        let name =
            if from_top && place != Place::Boot { name.strip_prefix("boot/").unwrap_or(name) } else { name };
        let Some(path) = plain_path(name) else {
            let refused = Refused { name: found.name, key: found.key, counts };
            // A comment is not a name.
            if found.sure && !self.refused.contains(&refused) {
                self.refused.push(refused);
            }
            return;
        };
        match self.named.iter_mut().find(|n| n.path == path && n.key == found.key && n.place == place) {
            Some(named) => named.counts |= counts,
            None => self.named.push(Named { path, key: found.key, counts, place }),
        }
    }
}

/// A name, as a reader finds it.
struct Found {
    key: Key,
    name: String,
    /// Whether the bootloader that has this key is sure to take this name.
    sure: bool,
}
