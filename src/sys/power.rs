//! Ends the system without systemd: the kernel's own methods, gentlest first.

use std::convert::Infallible;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::reboot::{RebootMode, reboot};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shutdown {
    PowerOff,
    Reboot,
}

impl Shutdown {
    #[must_use]
    pub const fn verb(self) -> &'static str {
        match self {
            Shutdown::PowerOff => "power off",
            Shutdown::Reboot => "reboot",
        }
    }
}

/// `sync(2)` never returns while a disk hangs, so the system ends without it after this time. All own writes were flushed before.
const SYNC_LIMIT: Duration = Duration::from_secs(30);

/// Between the letters of sysrq: the kernel syncs and remounts in the background, and does not report the end.
const SYSRQ_PAUSE: Duration = Duration::from_secs(2);

/// Writes dirty pages back; returns whether that finished within `limit`.
#[must_use]
pub fn sync_within(limit: Duration) -> bool {
    let (done, waiting) = mpsc::channel();
    let thread = std::thread::Builder::new().name("sync".into()).spawn(move || {
        nix::unistd::sync();
        // A late result has no receiver.
        let _late = done.send(());
    });
    thread.is_ok() && waiting.recv_timeout(limit).is_ok()
}

/// `reboot(2)`, after `sync(2)`: stops no service and unmounts no file system. Returns only on failure.
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

/// The last resort, by `/proc/sysrq-trigger` below `root`: sync, remount read-only, end. Takes some seconds. After a return the
/// kernel may still need a moment, or may be unable to power this board off.
pub fn sysrq(ending: Shutdown, root: &Path) -> io::Result<()> {
    let last = match ending {
        Shutdown::PowerOff => b"o",
        Shutdown::Reboot => b"b",
    };
    // One open for all letters: after the remount another one may fail. Never creates the file.
    let mut trigger = OpenOptions::new().append(true).open(root.join("proc/sysrq-trigger"))?;
    for letter in [b"s", b"u"] {
        trigger.write_all(letter)?;
        std::thread::sleep(SYSRQ_PAUSE);
    }
    trigger.write_all(last)
}

/// Never returns: where this program replaces PID 1's script, a return would count as a failure.
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
            sysrq(ending, root.path()).unwrap();
            assert_eq!(std::fs::read_to_string(&trigger).unwrap(), letters);
        }
    }
}
