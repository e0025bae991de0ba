//! Folder trees as maps, and what the tests need of the machine.

use std::path::{Path, PathBuf};

use copal::boot_files::install::{Contents, Destination, Install};
use copal::config::flasher_conf::{FlasherConf, RawConf};
use copal::error::Result;

use crate::kit::disk::Loop;
pub use crate::kit::disk::{Undo, tmpfs as small};
pub use crate::kit::files::{Tree, make, see, tree};
pub use crate::kit::needs::can_run;
pub use crate::kit::process::tool;

/// A medium, a destination, a configuration.
pub struct Rig {
    pub dir: tempfile::TempDir,
    pub medium: PathBuf,
    pub dest: PathBuf,
    pub config: PathBuf,
}

impl Rig {
    pub fn new(medium: &[(&str, &str)], dest: &[(&str, &str)]) -> Rig {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = |name: &str| dir.path().join(name);
        let rig = Rig { medium: at("boot"), dest: at("internal_boot"), config: at("config.json"), dir };
        for folder in [&rig.medium, &rig.dest] {
            std::fs::create_dir(folder).unwrap();
        }
        std::fs::write(&rig.config, "{\"uuid\":\"abc\"}").unwrap();
        make(&rig.medium, &tree(medium));
        make(&rig.dest, &tree(dest));
        rig
    }

    pub fn gather(&self, conf: &str) -> Result<Contents> {
        Contents::gather(&self.medium, &parse(conf)?, &self.config, Install::Plain)
    }

    pub fn open(&self) -> Destination {
        Destination::open(&self.dest, None).unwrap()
    }

    pub fn see(&self) -> Tree {
        see(&self.dest)
    }
}

pub fn parse(conf: &str) -> Result<FlasherConf> {
    FlasherConf::from_raw(RawConf::parse(conf, Path::new("/etc/resin-init-flasher.conf"))?)
}

/// A loop device with an ext4, which stands for a partition here.
pub struct Ext4 {
    pub node: PathBuf,
    _disk: Loop,
}

impl Ext4 {
    pub fn new(dir: &Path, name: &str, mib: u64) -> Ext4 {
        let file = dir.join(name);
        std::fs::File::create(&file).unwrap().set_len(mib << 20).unwrap();
        tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-L", "resin-boot", file.to_str().unwrap()]);
        let disk = Loop::over(&file, &[]);
        Ext4 { node: disk.node.clone(), _disk: disk }
    }
}
