//! Disks for the system guest: a Debian with systemd, with whatever a test puts into it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::host::{self, folder, tool};

/// A Debian system in a folder, to be changed and then written as a file system.
pub(crate) struct System {
    dir: tempfile::TempDir,
}

impl System {
    /// The system as it was prepared. None where this machine has none; then it has been said for that test.
    pub(crate) fn new(test: &str) -> Option<Self> {
        match host::part("system") {
            Ok(at) => {
                let dir = folder();
                let root = dir.path().join("root");
                std::fs::create_dir(&root).unwrap();
                let archive = at.join("rootfs.tar");
                tool(&["tar", "-C", root.to_str().unwrap(), "-xpf", archive.to_str().unwrap()]);
                Some(Self { dir })
            }
            Err(why) => {
                host::not_run(test, &why);
                None
            }
        }
    }

    /// The folder, for whatever the functions below do not do.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn place(&self, to: &str) -> PathBuf {
        let path = self.root().join(to.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        // What is there may be a link.
        drop(std::fs::remove_file(&path));
        path
    }

    /// A file of this machine, with its mode.
    pub(crate) fn file(self, from: &Path, to: &str) -> Self {
        let to = self.place(to);
        tool(&["cp", "--sparse=always", from.to_str().unwrap(), to.to_str().unwrap()]);
        self
    }

    /// A file with these contents; executable where it starts with `#!`.
    pub(crate) fn text(self, to: &str, contents: &str) -> Self {
        let to = self.place(to);
        std::fs::write(&to, contents).unwrap();
        let mode = if contents.starts_with("#!") { 0o755 } else { 0o644 };
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    pub(crate) fn link(self, target: &str, at: &str) -> Self {
        std::os::unix::fs::symlink(target, self.place(at)).unwrap();
        self
    }

    /// The binary under test, as `/usr/bin/copal`.
    pub(crate) fn copal(self) -> Self {
        self.file(&host::copal(), "/usr/bin/copal")
    }

    /// A file as it is shipped, by its path in the repository.
    pub(crate) fn shipped(self, from: &str, to: &str) -> Self {
        self.file(&Path::new(env!("CARGO_MANIFEST_DIR")).join(from), to)
    }

    /// A unit as it is shipped, started with everything else.
    pub(crate) fn shipped_unit(self, name: &str) -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(name);
        let contents = std::fs::read_to_string(&from).unwrap();
        self.unit(name, &contents)
    }

    /// A unit, started with everything else.
    pub(crate) fn unit(self, name: &str, contents: &str) -> Self {
        self.text(&format!("/etc/systemd/system/{name}"), contents)
            .link(&format!("../{name}"), &format!("/etc/systemd/system/multi-user.target.wants/{name}"))
    }

    /// Writes it as an ext4 file system of that size.
    pub(crate) fn ext4(&self, to: &Path, label: &str, mib: u64) {
        let (root, size) = (self.root(), format!("{mib}M"));
        let (root, to) = (root.to_str().unwrap(), to.to_str().unwrap());
        tool(&[
            "mke2fs",
            "-q",
            "-F",
            "-t",
            "ext4",
            "-E",
            "root_owner=0:0",
            "-L",
            label,
            "-d",
            root,
            to,
            &size,
        ]);
    }
}

/// Writes a FAT file system of that size, with these files.
pub(crate) fn fat_image(to: &Path, label: &str, mib: u64, files: &[(&str, &[u8])]) {
    std::fs::File::create(to).unwrap().set_len(mib << 20).unwrap();
    let image = to.to_str().unwrap();
    tool(&["mkfs.vfat", "-n", label, image]);
    fat_files(to, files);
}

/// Puts files onto a FAT file system.
pub(crate) fn fat_files(to: &Path, files: &[(&str, &[u8])]) {
    let (dir, image) = (folder(), to.to_str().unwrap());
    for (name, data) in files {
        let from = dir.path().join("file");
        std::fs::write(&from, data).unwrap();
        let mut above = String::from("::");
        for folder in Path::new(name).parent().into_iter().flatten() {
            above = format!("{above}/{}", folder.to_str().unwrap());
            // It may be there from the file before.
            drop(std::process::Command::new("mmd").args(["-i", image, "-D", "s", &above]).output());
        }
        tool(&["mcopy", "-o", "-i", image, from.to_str().unwrap(), &format!("::/{name}")]);
    }
}

/// Writes a GPT disk from the images of its partitions (name, image), 1 MiB apart, with `spare` MiB after the last one.
pub(crate) fn gpt_image(to: &Path, partitions: &[(&str, &Path)], spare: u64) {
    let mib = |path: &Path| std::fs::metadata(path).unwrap().len().div_ceil(1 << 20);
    let total = 2 + spare + partitions.iter().map(|(_, p)| mib(p)).sum::<u64>();
    std::fs::File::create(to).unwrap().set_len(total << 20).unwrap();
    let target = to.to_str().unwrap();
    let mut at = 1;
    for (n, (name, image)) in partitions.iter().enumerate() {
        let (n, size) = (n + 1, mib(image));
        tool(&[
            "sgdisk",
            "-a",
            "1",
            "-n",
            &format!("{n}:{at}M:+{size}M"),
            "-c",
            &format!("{n}:{name}"),
            target,
        ]);
        let (from, onto) = (format!("if={}", image.display()), format!("of={target}"));
        tool(&["dd", &from, &onto, "bs=1M", &format!("seek={at}"), "conv=sparse,notrunc", "status=none"]);
        at += size;
    }
}
