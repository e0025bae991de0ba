//! Starting the system: the way from a slot as root to the root of its container.

use std::convert::Infallible;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::mount::MountFlags;

use crate::{container, mounts};

/// Where the slot is from then on.
const SLOT: &str = "mnt/sysroot/active";

/// The program of the system that goes on.
const INIT: &str = "/sbin/init";

/// Makes the slot's container the root, and executes its init with these arguments. Returns only with an error.
pub(crate) fn boot(slot: &Path, name: &OsStr, arguments: &[OsString]) -> Box<dyn Error> {
    match start(slot, name, arguments) {
        Err(e) => e,
        Ok(never) => match never {},
    }
}

fn start(slot: &Path, name: &OsStr, arguments: &[OsString]) -> Result<Infallible, Box<dyn Error>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| {
        format!("/proc/self/mountinfo: {e}: the initramfs has to mount /proc, and to move it into the slot")
    })?;
    let moving = mounts::on_root(&table);
    // The layers need a slot that can be written, whatever the kernel's command line says of it.
    rustix::mount::mount_remount(slot, MountFlags::empty(), c"")
        .map_err(|e| format!("cannot make the slot writable: {e}; its file system may be damaged"))?;
    let root = container::current(slot)?.mount_in_place()?;
    let at_root = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));

    let old = root.join(SLOT);
    std::fs::create_dir_all(&old).map_err(|e| format!("{}: {e}", old.display()))?;
    for point in &moving {
        let target = at_root(point);
        // Missing only where an image leaves it out; the move below says what is wrong.
        if point.is_dir() {
            drop(std::fs::create_dir_all(&target));
        } else if !target.exists() {
            drop(std::fs::write(&target, ""));
        }
    }
    // The system is read-only; `mount -o remount,rw /` makes it writable, and what is written there goes with the next update.
    rustix::mount::mount_remount(&root, MountFlags::RDONLY, c"")
        .map_err(|e| format!("cannot make the root read-only: {e}"))?;
    for point in &moving {
        if let Err(e) = rustix::mount::mount_move(point, at_root(point)) {
            // A mount that is left is in the slot's folder; a system without it may still come up.
            eprintln!("init: cannot move {}: {e}", point.display());
        }
    }
    rustix::process::pivot_root(&root, &old)
        .map_err(|e| format!("cannot pivot to {}: {e}", root.display()))?;
    std::env::set_current_dir("/")?;
    let e = Command::new(INIT).arg0(name).args(arguments).exec();
    Err(format!("cannot execute {INIT} of the container: {e}").into())
}
