//! Room on the data partition for the engine to unpack an archive in, so that the slot is not filled twice.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::paths::Paths;
use crate::sys::mount;
use crate::sys::signal;
use crate::update::sysroot::Sysroot;

/// A folder of the engine's own on the data partition; nothing lasting is in it.
const FOLDER: &str = "/mnt/data/resin-data/tmp";

/// For the engine to let go of its last temporary.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The folder, in the place of the engine's own. Nothing depends on it but room.
pub(crate) struct Scratch {
    folder: PathBuf,
    point: PathBuf,
}

impl Scratch {
    fn of(paths: &Paths, sysroot: &Sysroot) -> Scratch {
        Scratch { folder: paths.at(FOLDER), point: sysroot.engine().join("tmp") }
    }

    /// Removes what an update has left there that was cut off: as much as a whole release, which the next one needs. To be called
    /// with the lock of updates held. `kept` is the archive, wherever it is.
    pub(crate) fn clear(paths: &Paths, sysroot: &Sysroot, kept: &Path) {
        let scratch = Scratch::of(paths, sysroot);
        if scratch.folder.is_dir() {
            tracing::info!("removing what an earlier update has left in {}", scratch.folder.display());
            scratch.end(paths, kept);
        }
    }

    /// Puts it in place, where there is a data partition.
    pub(super) fn mount(paths: &Paths, sysroot: &Sysroot) -> Scratch {
        let scratch = Scratch::of(paths, sysroot);
        if paths.data().is_dir()
            && let Err(e) = mount::in_host_namespace(|| scratch.begin(paths))
        {
            tracing::warn!("{} is not used to unpack in, the slot itself is: {e}", scratch.folder.display());
        }
        scratch
    }

    fn begin(&self, paths: &Paths) -> io::Result<()> {
        if is_mounted(paths, &self.point)? {
            return Ok(());
        }
        fs::create_dir_all(&self.folder)?;
        fs::create_dir_all(&self.point)?;
        mount::bind(&self.folder, &self.point)
    }

    /// Takes it away again, whoever put it there, with everything in it but `kept`.
    pub(super) fn end(self, paths: &Paths, kept: &Path) {
        let ended = mount::in_host_namespace(|| {
            if is_mounted(paths, &self.point)? {
                match signal::came() {
                    // An engine that is still at work on a load that was interrupted is not waited for.
                    Some(_) => mount::detach(&self.point)?,
                    None => mount::unmount(&self.point, TIMEOUT)?,
                }
            }
            Ok(())
        });
        if let Err(e) = ended {
            tracing::warn!("cannot unmount {}: {e}", self.point.display());
            return;
        }
        let kept = kept.canonicalize().unwrap_or_else(|_| kept.to_owned());
        let real = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        if kept.starts_with(real) {
            return;
        }
        match fs::remove_dir_all(&self.folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {e}", self.folder.display());
            }
            _ => {}
        }
    }
}

/// As the calling thread sees it, which may have gone to the mounts of another process.
fn is_mounted(paths: &Paths, point: &Path) -> io::Result<bool> {
    let table = paths.at("/proc/thread-self/mountinfo");
    let table = if table.exists() { table } else { paths.at("/proc/self/mountinfo") };
    Ok(mount::read_mounts(&table)?.iter().any(|m| m.point == point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cut_off_update_left_is_cleared_but_for_the_archive() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        let put = |path: &str| {
            let path = paths.at(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "x").unwrap();
            path
        };
        put("/proc/self/mountinfo");
        fs::write(paths.at("/proc/self/mountinfo"), "").unwrap();
        let sysroot = Sysroot::at(paths.inactive());
        let left = put("/mnt/data/resin-data/tmp/docker-import-1/layer.tar");
        let other = put("/mnt/data/resin-data/database");
        Scratch::clear(&paths, &sysroot, &other);
        assert!(!left.exists() && other.exists());
        // Again, and with nothing there.
        Scratch::clear(&paths, &sysroot, &other);
        // Somebody may have put the archive there.
        let archive = put("/mnt/data/resin-data/tmp/os.tar");
        Scratch::clear(&paths, &sysroot, &archive);
        assert!(archive.exists());
    }
}
