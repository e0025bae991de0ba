//! A made-up machine: `sys`, `proc`, `dev` and `run` in a temporary folder.
#![allow(unreachable_pub, dead_code)] // no test program uses all of it

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use copal::config::paths::Paths;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

pub struct Tree {
    dir: tempfile::TempDir,
    mounts: String,
    swaps: String,
}

impl Tree {
    /// A machine without any device.
    pub fn new() -> Self {
        Self::in_folder(&std::env::temp_dir())
    }

    /// One without any device, on the file system of `folder`.
    pub fn in_folder(folder: &Path) -> Self {
        let dir = tempfile::tempdir_in(folder).unwrap();
        let mut tree =
            Tree { dir, mounts: String::new(), swaps: "Filename Type Size Used Priority\n".into() };
        tree.folder("/sys/block").folder("/sys/class/block").folder("/dev").file("/proc/self/mountinfo", "");
        tree
    }

    pub fn paths(&self) -> Paths {
        Paths::new(self.dir.path())
    }

    pub fn folder(&mut self, path: &str) -> &mut Self {
        fs::create_dir_all(self.paths().at(path)).unwrap();
        self
    }

    pub fn file(&mut self, path: &str, text: &str) -> &mut Self {
        let path = self.paths().at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub fn link(&mut self, path: &str, to: &str) -> &mut Self {
        let path = self.paths().at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
        self
    }

    /// A whole device with its placeholder node.
    pub fn disk(&mut self, name: &str, dev: &str, bytes: u64) -> &mut Self {
        let dir = format!("/sys/class/block/{name}");
        self.folder(&format!("{dir}/holders")).folder(&format!("{dir}/slaves"));
        self.folder(&format!("/sys/block/{name}")).basics(&dir, name, dev, bytes)
    }

    fn basics(&mut self, dir: &str, name: &str, dev: &str, bytes: u64) -> &mut Self {
        self.file(&format!("{dir}/dev"), &format!("{dev}\n"));
        self.file(&format!("{dir}/size"), &format!("{}\n", bytes / 512));
        self.file(&format!("{dir}/ro"), "0\n").file(&format!("/dev/{name}"), "")
    }

    /// A partition, in the folder of its disk as in a real sysfs.
    pub fn part(&mut self, disk: &str, name: &str, dev: &str, bytes: u64) -> &mut Self {
        let dir = format!("/sys/class/block/{disk}/{name}");
        self.folder(&format!("{dir}/holders")).basics(&dir, name, dev, bytes);
        let number = name.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap();
        self.file(&format!("{dir}/partition"), &format!("{number}\n"))
            .file(&format!("{dir}/start"), "2048\n");
        self.link(&format!("/sys/class/block/{name}"), &format!("{disk}/{name}"))
    }

    pub fn attr(&mut self, name: &str, attribute: &str, value: &str) -> &mut Self {
        self.file(&format!("/sys/class/block/{name}/{attribute}"), &format!("{value}\n"))
    }

    /// Links a device to one it lies on.
    pub fn stack(&mut self, lower: &str, upper: &str) -> &mut Self {
        self.folder(&format!("/sys/class/block/{lower}/holders/{upper}"));
        self.folder(&format!("/sys/class/block/{upper}/slaves/{lower}"))
    }

    pub fn mapped(&mut self, name: &str, dev: &str, bytes: u64, mapper: &str, uuid: &str) -> &mut Self {
        self.disk(name, dev, bytes).attr(name, "dm/name", mapper).attr(name, "dm/uuid", uuid)
    }

    pub fn array(&mut self, name: &str, dev: &str, bytes: u64, level: &str) -> &mut Self {
        self.disk(name, dev, bytes).attr(name, "md/level", level)
    }

    /// A loop device; idle where `file` is empty.
    pub fn loopback(&mut self, name: &str, dev: &str, bytes: u64, file: &str) -> &mut Self {
        self.disk(name, dev, bytes);
        if file.is_empty() { self } else { self.attr(name, "loop/backing_file", file) }
    }

    pub fn udev(&mut self, dev: &str, properties: &[(&str, &str)]) -> &mut Self {
        let lines: String = properties.iter().map(|(k, v)| format!("E:{k}={v}\n")).collect();
        self.file(&format!("/run/udev/data/b{dev}"), &lines)
    }

    /// Bytes at an offset of a device.
    pub fn content(&mut self, name: &str, size: u64, offset: u64, bytes: &[u8]) -> &mut Self {
        let file = fs::OpenOptions::new().write(true).open(self.node(name)).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        self
    }

    fn node(&self, name: &str) -> std::path::PathBuf {
        self.paths().at(Path::new("/dev").join(name))
    }

    /// One more mount, on top of those before it.
    pub fn mount(&mut self, dev: &str, point: &str, fstype: &str, source: &str, options: &str) -> &mut Self {
        let id = 100 + self.mounts.lines().count();
        let line = format!("{id} 1 {dev} / {point} rw shared:1 - {fstype} {source} {options}\n");
        self.mounts.push_str(&line);
        let text = self.mounts.clone();
        self.file("/proc/self/mountinfo", &text)
    }

    /// One more mount, after all others, at a point that is not UTF-8.
    pub fn mount_at_bytes(&mut self, dev: &str, point: &[u8]) -> &mut Self {
        let before = format!("{}999 1 {dev} / ", self.mounts);
        let line = [before.as_bytes(), point, b" rw shared:1 - vfat /dev/x rw\n"].concat();
        fs::write(self.paths().at("/proc/self/mountinfo"), line).unwrap();
        self
    }

    pub fn swap(&mut self, path: &str, kind: &str) -> &mut Self {
        self.swaps.push_str(&format!("{path}\t\t{kind}\t\t1024\t0\t-2\n"));
        let text = self.swaps.clone();
        self.file("/proc/swaps", &text)
    }
}
