//! A device with two root partitions, and golden trees on it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use copal::config::paths::Paths;
use copal::error::Result;
use copal::hooks::Context;
use copal::hooks::builtin::BUILTINS;

use crate::kit::tree::{GIB, MIB, Tree};

/// Bytes of the disk.
pub const DISK: u64 = 8 * MIB;

/// What differs between devices.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// Number of root A's partition; B's is the next.
    pub first_root: u32,
    pub uefi: bool,
    pub encrypted: bool,
}

pub const PLAIN: Kind = Kind { first_root: 2, uefi: false, encrypted: false };
pub const UEFI: Kind = Kind { first_root: 2, uefi: true, encrypted: false };
pub const ENCRYPTED: Kind = Kind { first_root: 3, uefi: true, encrypted: true };

/// A machine that runs root A.
pub struct Machine {
    pub tree: Tree,
}

impl Machine {
    pub fn new(kind: Kind) -> Machine {
        let mut tree = Tree::new();
        tree.disk("sda", "8:0", DISK).folder("/run/udev/data").folder("/mnt/state").folder("/mnt/data");
        tree.part("sda", "sda1", "8:1", MIB).attr("sda1", "partition", "1");
        for (n, letter) in [(kind.first_root, 'A'), (kind.first_root + 1, 'B')] {
            let (name, dev) = (format!("sda{n}"), format!("8:{n}"));
            tree.part("sda", &name, &dev, GIB).attr(&name, "partition", &n.to_string());
            let point = format!("/mnt/sysroot/{}", if letter == 'A' { "active" } else { "inactive" });
            let label = format!("resin-root{letter}");
            let properties = [("ID_FS_TYPE", "ext4"), ("ID_FS_LABEL", label.as_str())];
            tree.folder(&point);
            if letter == 'B' {
                tree.mount("0:40", &point, "autofs", "systemd-1", "rw");
            }
            if kind.encrypted {
                let (mapped, dm) = (format!("dm-{n}"), format!("254:{n}"));
                tree.mapped(&mapped, &dm, GIB, &label, &format!("CRYPT-LUKS2-{n}-{label}"));
                tree.stack(&name, &mapped).udev(&dm, &properties);
                tree.mount(&dm, &point, "ext4", &format!("/dev/mapper/{label}"), "rw");
            } else {
                tree.udev(&dev, &properties).mount(&dev, &point, "ext4", &format!("/dev/{name}"), "rw");
            }
        }
        tree.folder("/mnt/boot").mount("8:1", "/mnt/boot", "vfat", "/dev/sda1", "rw");
        if kind.encrypted {
            tree.folder("/mnt/efi").mount("8:2", "/mnt/efi", "vfat", "/dev/sda2", "rw");
        }
        if kind.uefi {
            tree.folder("/sys/firmware/efi");
        }
        Machine { tree }
    }

    pub fn paths(&self) -> Paths {
        self.tree.paths()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.paths().at(path)
    }

    /// Puts a golden tree on it.
    pub fn lay(&self, golden: &Path) {
        copy(golden, self.paths().root());
    }

    pub fn run(&self, hook: &str, during_update: bool) -> Result<()> {
        let builtin = BUILTINS.iter().find(|b| b.names.contains(&hook)).expect("in the table");
        (builtin.run)(&Context { paths: self.paths(), during_update, called: hook.to_owned() })
    }

    /// Everything on the mounted partitions.
    pub fn see(&self) -> Files {
        see(&self.at("/mnt"))
    }
}

/// Files by path, with their content; `-> …` for links.
pub type Files = BTreeMap<String, String>;

pub fn golden(case: &str, part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hooks/builtin/golden").join(case).join(part)
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = {
            let e = entry.unwrap();
            (e.path(), to.join(e.file_name()))
        };
        if path.is_symlink() {
            symlink(fs::read_link(&path).unwrap(), to).unwrap();
        } else if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(&path, &to).unwrap();
        }
    }
}

pub fn see(root: &Path) -> Files {
    let mut files = Files::new();
    let mut todo = vec![root.to_owned()];
    while let Some(folder) = todo.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if path.is_symlink() {
                files.insert(name, format!("-> {}", fs::read_link(&path).unwrap().display()));
            } else if path.is_dir() {
                todo.push(path);
            } else {
                files.insert(name, String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned());
            }
        }
    }
    files
}
