//! A disk image that fails as told: a storage daemon that exports it through FUSE. A loop device on that is a disk.
#![allow(dead_code)] // no test program uses all of it

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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
        let config = backing.with_extension("rules");
        std::fs::write(&config, rules).unwrap();
        Daemon::filtered(backing, &[], &format!("driver=blkdebug,image=f,config={}", config.display()))
    }

    /// Exports the file `backing`, which then reads and writes so many bytes a second, as `backing.export`.
    ///
    /// # Errors
    /// What is missing here.
    pub fn throttled(backing: &Path, rate: u64) -> Result<Daemon, &'static str> {
        let limits = format!("throttle-group,id=g,x-bps-write={rate},x-bps-read={rate}");
        Daemon::filtered(backing, &["--object", &limits], "driver=throttle,throttle-group=g,file=f")
    }

    /// Exports the file `backing`, which then takes so many bytes a second and gives them at once, as `backing.export`.
    ///
    /// # Errors
    /// What is missing here.
    pub fn slow_to_write(backing: &Path, rate: u64) -> Result<Daemon, &'static str> {
        let limits = format!("throttle-group,id=g,x-bps-write={rate}");
        Daemon::filtered(backing, &["--object", &limits], "driver=throttle,throttle-group=g,file=f")
    }

    /// Holds every access to the export until [`Daemon::resume`].
    pub fn hold(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).unwrap();
    }

    fn filtered(backing: &Path, options: &[&str], filter: &str) -> Result<Daemon, &'static str> {
        let export = backing.with_extension("export").to_str().unwrap().to_owned();
        std::fs::write(&export, "").unwrap();
        let size = std::fs::metadata(backing).unwrap().len();
        // QEMU 7.2, Debian 12's, turns a hole that is punched into a discard, which does nothing unless each node lets it: the old bytes stay.
        let process = Command::new("qemu-storage-daemon")
            .args(options)
            .args([
                "--blockdev",
                &format!("driver=file,filename={},node-name=f,discard=unmap", backing.display()),
            ])
            .args(["--blockdev", &format!("{filter},node-name=d,discard=unmap")])
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
        self.resume();
        let _status = self.process.wait();
        let _unmounted = Command::new("umount").arg("-l").arg(&self.export).output();
    }
}
