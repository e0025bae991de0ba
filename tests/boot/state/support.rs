//! A boot partition in a temporary folder.

use std::path::PathBuf;

use copal::boot_state::envblock::Damage;
use copal::boot_state::uenv::Uenv;
use copal::boot_state::variables::Variables;
use copal::boot_state::{BootState, Named};
use copal::config::paths::Paths;
use copal::slot::{Root, Slot};

use crate::kit::files::in_memory;

pub(crate) struct Device {
    _dir: tempfile::TempDir,
    pub(crate) paths: Paths,
}

impl Device {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Device {
        let dir = in_memory();
        let paths = Paths::new(dir.path());
        std::fs::create_dir_all(paths.boot()).unwrap();
        let device = Device { _dir: dir, paths };
        for (name, content) in files {
            device.write(name, content);
        }
        device
    }

    /// A path on the boot partition.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.paths.boot().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        let path = self.at(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.at(name)).unwrap()
    }

    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// The names on the boot partition, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.paths.boot()).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub(crate) fn root(slot: Slot, index: u32) -> Root {
    let dev = (179, index);
    Root { slot, index, dev, partition: dev, disk: Some((179, 0)), encrypted: false }
}

pub(crate) fn state(root: Named, bootcount: u32, upgrade_available: bool) -> BootState {
    BootState { root, bootcount, upgrade_available, selected: true, damage: None }
}

/// Of a file in which the bootloader finds no root.
pub(crate) fn unselected(default: Named, damage: Option<Damage>) -> BootState {
    BootState { selected: false, damage, ..state(default, 0, false) }
}

/// What U-Boot reads for a key.
pub(crate) fn uboot_value(uenv: &Uenv, key: &str) -> Option<Vec<u8>> {
    let mut read = Variables::default();
    let _what_counts_of_it = read.import(uenv);
    read.get(key).map(<[u8]>::to_vec)
}

/// A block with these lines.
pub(crate) fn block(lines: &str) -> Vec<u8> {
    let mut bytes = format!("# GRUB Environment Block\n{lines}").into_bytes();
    assert!(bytes.len() <= 1024);
    bytes.resize(1024, b'#');
    bytes
}
