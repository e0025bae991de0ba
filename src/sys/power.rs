//! Ending the system without systemd: the kernel's own ways, gentlest first.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::reboot::{RebootMode, reboot};

/// How to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shutdown {
    /// Power off.
    PowerOff,
    /// Restart.
    Reboot,
}

impl Shutdown {
    /// In words.
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Shutdown::PowerOff => "power off",
            Shutdown::Reboot => "reboot",
        }
    }
}

/// How long `sync(2)` may take before the system is ended without it: it never returns while a disk hangs, and whatever
/// had to be on a disk was flushed before, by whoever wrote it.
const SYNC_LIMIT: Duration = Duration::from_secs(30);

/// Between the letters of sysrq: the kernel syncs and remounts in the background, and tells nobody when it has.
const SYSRQ_PAUSE: Duration = Duration::from_secs(2);

/// Writes dirty pages back, waiting at most `limit`; whether it was done by then.
#[must_use]
pub fn sync_within(limit: Duration) -> bool {
    let (done, waiting) = mpsc::channel();
    let thread = std::thread::Builder::new().name("sync".into()).spawn(move || {
        nix::unistd::sync();
        // Nobody waits any more, if it is late.
        let _late = done.send(());
    });
    thread.is_ok() && waiting.recv_timeout(limit).is_ok()
}

/// `reboot(2)`, after `sync(2)`: no service is stopped and no file system unmounted. Returns only when it fails.
///
/// # Errors
/// `EPERM` without `CAP_SYS_BOOT`.
pub fn kernel(ending: Shutdown) -> io::Result<Infallible> {
    if !sync_within(SYNC_LIMIT) {
        tracing::warn!("not everything was written back in {} s", SYNC_LIMIT.as_secs());
    }
    let mode = match ending {
        Shutdown::PowerOff => RebootMode::RB_POWER_OFF,
        Shutdown::Reboot => RebootMode::RB_AUTOBOOT,
    };
    Ok(reboot(mode)?)
}

/// The last resort, by `/proc/sysrq-trigger` below `root`: sync, remount read-only, end. Takes some seconds. A return
/// means that the kernel was asked; it may take a moment, or have no way to power this board off.
///
/// # Errors
/// There is no such file (a kernel without sysrq, no `/proc`), or it may not be written to.
pub fn sysrq(ending: Shutdown, root: &Path) -> io::Result<()> {
    sysrq_with(ending, root, SYSRQ_PAUSE)
}

fn sysrq_with(ending: Shutdown, root: &Path, pause: Duration) -> io::Result<()> {
    let last = match ending {
        Shutdown::PowerOff => b"o",
        Shutdown::Reboot => b"b",
    };
    // One open for all: after the remount, or on a dying system, another one may fail. And never made where it is not.
    let mut trigger = OpenOptions::new().append(true).open(root.join("proc/sysrq-trigger"))?;
    for letter in [b"s", b"u"] {
        trigger.write_all(letter)?;
        std::thread::sleep(pause);
    }
    trigger.write_all(last)
}

/// Waits for the end that was asked for. Never returns: where this program stands in for PID 1's script, its return
/// would be taken for a failure.
pub fn stay() -> ! {
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysrq_writes_its_letters_in_order() {
        let root = tempfile::tempdir().unwrap();
        let trigger = root.path().join("proc/sysrq-trigger");
        assert!(sysrq(Shutdown::Reboot, root.path()).is_err());
        std::fs::create_dir(root.path().join("proc")).unwrap();
        assert!(sysrq(Shutdown::Reboot, root.path()).is_err());
        assert!(!trigger.exists());
        for (ending, letters) in [(Shutdown::Reboot, "sub"), (Shutdown::PowerOff, "suo")] {
            std::fs::write(&trigger, "").unwrap();
            sysrq_with(ending, root.path(), Duration::ZERO).unwrap();
            assert_eq!(std::fs::read_to_string(&trigger).unwrap(), letters);
        }
    }
}
