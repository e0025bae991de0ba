//! A folder on the data partition for the engine to unpack an archive in, so that the slot need not hold it twice.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::paths::Paths;
use crate::sys::mount;
use crate::sys::signal;
use crate::update::sysroot::Sysroot;

/// copal's own; everything in it is temporary.
const FOLDER: &str = "/mnt/data/resin-data/tmp";

/// For the engine to close its last temporary file.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Mounted over the engine's folder. It only saves space.
pub(crate) struct Scratch {
    folder: PathBuf,
    point: PathBuf,
}

impl Scratch {
    fn of(paths: &Paths, sysroot: &Sysroot) -> Scratch {
        Scratch { folder: paths.at(FOLDER), point: sysroot.engine().join("tmp") }
    }

    /// Removes files of an interrupted update: up to a whole release, and the next update needs the space. To be called with the lock of
    /// updates held. `kept`: the archive, which may be in the folder.
    pub(crate) fn clear(paths: &Paths, sysroot: &Sysroot, kept: &Path) {
        let scratch = Scratch::of(paths, sysroot);
        if scratch.folder.is_dir() {
            tracing::info!("removing files of an interrupted update in {}", scratch.folder.display());
            scratch.end(paths, kept);
        }
    }

    pub(super) fn mount(paths: &Paths, sysroot: &Sysroot) -> Scratch {
        let scratch = Scratch::of(paths, sysroot);
        if paths.data().is_dir()
            && let Err(e) = mount::in_host_namespace(|| scratch.begin(paths))
        {
            tracing::warn!("cannot unpack in {}, unpacking in the slot: {e}", scratch.folder.display());
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

    /// Unmounts it, whichever program mounted it, and removes everything except `kept`.
    pub(super) fn end(self, paths: &Paths, kept: &Path) {
        let ended = mount::in_host_namespace(|| {
            if is_mounted(paths, &self.point)? {
                match signal::came() {
                    // The engine may still work on an interrupted load: do not wait for it.
                    Some(_) => mount::detach(&self.point)?,
                    None => mount::unmount(&self.point, UNMOUNT_TIMEOUT)?,
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

/// In the mount namespace of the calling thread.
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
        Scratch::clear(&paths, &sysroot, &other);
        let archive = put("/mnt/data/resin-data/tmp/os.tar");
        Scratch::clear(&paths, &sysroot, &archive);
        assert!(archive.exists());
    }
}
