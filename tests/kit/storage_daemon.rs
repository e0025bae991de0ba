//! A disk image that fails as told: a storage daemon that exports it through FUSE. A loop device on that is a disk.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The daemon, and the file it exports.
pub struct Daemon {
    pub process: Child,
    pub export: PathBuf,
}

impl Daemon {
    /// Exports the file `backing`, with errors by `rules` (`docs/devel/blkdebug` of QEMU), as `backing.export`.
    ///
    /// # Errors
    /// What is missing here.
    pub fn start(backing: &Path, rules: &str) -> Result<Daemon, &'static str> {
        let beside = |name: &str| backing.with_extension(name).to_str().unwrap().to_owned();
        let (export, config) = (beside("export"), beside("rules"));
        std::fs::write(&export, "").unwrap();
        std::fs::write(&config, rules).unwrap();
        let size = std::fs::metadata(backing).unwrap().len();
        let process = Command::new("qemu-storage-daemon")
            .args(["--blockdev", &format!("driver=file,filename={},node-name=f", backing.display())])
            .args(["--blockdev", &format!("driver=blkdebug,image=f,config={config},node-name=d")])
            .args(["--export", &format!("type=fuse,id=e,node-name=d,mountpoint={export},writable=on")])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|_| "no qemu-storage-daemon")?;
        let mut daemon = Daemon { process, export: export.into() };
        // It ends where it cannot export; whoever is slow is waited for.
        for _ in 0..2400 {
            if daemon.process.try_wait().unwrap().is_some() {
                break;
            }
            if std::fs::metadata(&daemon.export).is_ok_and(|m| m.len() == size) {
                return Ok(daemon);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("qemu-storage-daemon exports nothing (FUSE needed)")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _status = self.process.wait();
        let _unmounted = Command::new("umount").arg("-l").arg(&self.export).output();
    }
}
