//! A device with two roots, a boot partition, and a release in `/resin-boot`.
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use copal::boot_files::Deployed;
use copal::boot_files::deploy::{DeployRequest, Purpose};
use copal::config::paths::Paths;
use copal::disk::Facts;
use copal::error::Result;
use copal::hooks::Context;
use copal::hooks::builtin::bootfiles;
use copal::slot::Roots;
use copal::state::files::BootfilesRecord;

use crate::kit::files::{Tree as Files, make, see, tree};
use crate::kit::tree::{GIB, MIB, Tree};

pub struct Device {
    pub machine: Tree,
}

impl Device {
    /// With root A running; plain.
    pub fn new(boot: &[(&str, &str)], release: &[(&str, &str)]) -> Device {
        let mut m = Tree::new();
        m.disk("mmcblk0", "179:0", 16 * GIB);
        for (n, bytes) in [(1, 40 * MIB), (2, GIB), (3, GIB), (5, 20 * MIB)] {
            m.part("mmcblk0", &format!("mmcblk0p{n}"), &format!("179:{n}"), bytes);
            m.attr(&format!("mmcblk0p{n}"), "partition", &n.to_string());
        }
        m.udev("179:2", &[("ID_FS_LABEL", "resin-rootA")]).udev("179:3", &[("ID_FS_LABEL", "resin-rootB")]);
        m.mount("179:2", "/mnt/sysroot/active", "ext4", "/dev/mmcblk0p2", "rw");
        m.mount("179:3", "/mnt/sysroot/inactive", "ext4", "/dev/mmcblk0p3", "rw");
        Self::with(m, boot, release)
    }

    /// With both roots encrypted.
    pub fn encrypted(boot: &[(&str, &str)], release: &[(&str, &str)]) -> Device {
        let mut m = Tree::new();
        m.disk("sda", "8:0", 16 * GIB);
        for (n, slot) in [(2, "A"), (3, "B")] {
            let (part, volume, dev) = (format!("sda{n}"), format!("dm-{n}"), format!("253:{n}"));
            m.part("sda", &part, &format!("8:{n}"), GIB).attr(&part, "partition", &n.to_string());
            m.mapped(&volume, &dev, GIB, &format!("luks{n}"), "CRYPT-LUKS2-0-x").stack(&part, &volume);
            m.udev(&dev, &[("ID_FS_LABEL", &format!("resin-root{slot}"))]);
        }
        m.mount("253:2", "/mnt/sysroot/active", "ext4", "/dev/dm-2", "rw");
        m.mount("253:3", "/mnt/sysroot/inactive", "ext4", "/dev/dm-3", "rw");
        Self::with(m, boot, release)
    }

    fn with(mut m: Tree, boot: &[(&str, &str)], release: &[(&str, &str)]) -> Device {
        m.mount("179:1", "/mnt/boot", "vfat", "/dev/mmcblk0p1", "rw");
        m.file("/proc/sys/kernel/random/boot_id", "one\n").folder("/mnt/state").folder("/mnt/boot");
        let device = Device { machine: m };
        make(&device.boot(), &tree(boot));
        device.release(release);
        device
    }

    pub fn paths(&self) -> Paths {
        self.machine.paths()
    }

    pub fn boot(&self) -> PathBuf {
        self.paths().boot()
    }

    pub fn mount_data(&mut self) {
        self.machine.mount("179:6", "/mnt/data", "ext4", "/dev/mmcblk0p6", "rw").folder("/mnt/data");
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.paths().at(path)
    }

    /// Another release takes the place of the one in `/resin-boot`.
    pub fn release(&self, files: &[(&str, &str)]) {
        let folder = self.at("/resin-boot");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).unwrap();
        }
        std::fs::create_dir(&folder).unwrap();
        make(&folder, &tree(files));
    }

    /// The hook, as the runner calls it.
    pub fn hook(&self, called: &str, during_update: bool) -> Result<()> {
        bootfiles::run(&Context { paths: self.paths(), during_update, called: called.into() })
    }

    pub fn update(&self) -> Result<()> {
        self.hook("1-bootfiles", true)
    }

    pub fn undo(&self) -> Result<()> {
        self.hook("1-bootfiles", false)
    }

    /// The same by the library.
    pub fn request(&self, purpose: Purpose) -> DeployRequest {
        let roots = Roots::of(&Facts::gather(&self.paths()).unwrap()).unwrap();
        let root = if purpose == Purpose::Update { roots.inactive().unwrap() } else { &roots.active };
        DeployRequest::new(&self.paths(), root, purpose).unwrap()
    }

    pub fn deploy(&self, purpose: Purpose) -> Result<Deployed> {
        self.request(purpose).deploy()
    }

    /// The boot partition without its fingerprint.
    pub fn see(&self) -> Files {
        let mut seen = see(&self.boot());
        seen.remove("balenaos.fingerprint");
        seen
    }

    pub fn record(&self) -> Option<BootfilesRecord> {
        BootfilesRecord::read(&self.paths()).unwrap()
    }
}

/// What would tell a file that was written, or only touched, from one that was not.
pub fn stamps(root: &Path) -> BTreeMap<String, (u64, i64, i64, i64, i64)> {
    let stamp = |path: &Path| {
        let m = std::fs::symlink_metadata(path).unwrap();
        (m.ino(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec())
    };
    see(root).into_keys().map(|name| (name.clone(), stamp(&root.join(&name)))).collect()
}

/// The real program reads the fingerprint, in the boot partition.
pub fn md5sum_is_content(boot: &Path) -> bool {
    let out = Command::new("md5sum")
        .args(["--quiet", "--strict", "-c", "balenaos.fingerprint"])
        .current_dir(boot)
        .output()
        .unwrap();
    out.status.success() && out.stdout.is_empty()
}
