use std::fs;
use std::io;
use std::os::unix::fs::symlink;

use blockdev::{BlockDevError, BlockDevices};
use tempfile::TempDir;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};

/// All block devices, with what is stacked on them; without mounts.
///
/// The crate reads the mount table as UTF-8, but a mount point is bytes, such as the label of a stick. In that case it gets
/// an empty table: the choice of a target must not depend on the names of mount points.
pub(super) fn read(paths: &Paths) -> Result<BlockDevices> {
    let failed = |e: BlockDevError| Error::new(Code::Io, "cannot list block devices").because(e);
    let e = match blockdev::get_devices_at(paths.root()) {
        Err(e) if is_no_text(&e) => e,
        done => return done.map_err(failed),
    };
    let root = without_mounts(paths).map_err(|own| {
        failed(e)
            .and_also(&format!("no other table could be made for it: {own}"))
            .with_hint("unmount the file system whose mount point is not UTF-8")
    })?;
    blockdev::get_devices_at(root.path()).map_err(failed)
}

fn is_no_text(e: &BlockDevError) -> bool {
    matches!(e, BlockDevError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidData)
}

fn without_mounts(paths: &Paths) -> io::Result<TempDir> {
    // During start and shutdown only /run is writable, for root.
    let dir = tempfile::tempdir_in(paths.at("/run")).or_else(|_| tempfile::tempdir())?;
    let root = paths.root().canonicalize()?;
    for shared in ["sys", "run"] {
        symlink(root.join(shared), dir.path().join(shared))?;
    }
    let own = dir.path().join("proc/self");
    fs::create_dir_all(&own)?;
    fs::write(own.join("mountinfo"), "")?;
    Ok(dir)
}
