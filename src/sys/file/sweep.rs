//! Temporary files that a power cut has left.
//!
//! A rename on FAT changes two folder entries, which reach the medium in any order. A cut between them can leave the target *and*
//! the temporary file with the same clusters. Unlinking one of them frees the clusters of the other. On a damaged FAT a temporary file
//! may have clusters of any other file: then it stays.

use std::ffi::{OsStr, OsString};
use std::io;

use super::at;
use super::fat::{Obstacle, Owners};
use super::folder::{FileKind, Folder, lock};
use super::replace::unlink_open;
use super::shared_clusters::{make_writable_again, separate};
use super::temporary::is_temporary;
use crate::sys::crash_point::crash_point;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SweepResult {
    Removed,
    /// It shared its clusters with this file, which got its own copy; then the temporary file was removed.
    Repaired(OsString),
    /// Another process writes to it now.
    InUse,
    /// Not a file: it was not changed.
    Left,
    /// A removal could free clusters of another file: it was not changed.
    Kept(Obstacle),
}

type Swept = Vec<(OsString, SweepResult)>;

/// Removes what an interrupted [`replace`](super::replace) has left in a folder (not in subfolders). Call it before anything in
/// that folder is replaced or removed: only until then can a temporary file that shares its clusters be recognised.
pub fn sweep(folder: &Folder) -> io::Result<Swept> {
    crash_point!(folder.path(), "sweep");
    let was = nix::sys::statvfs::statvfs(folder.path())?.flags();
    let (mut swept, mut owners) = (Swept::new(), Owners::default());
    for (name, kind) in folder.list()?.into_iter().filter(|(n, _)| is_temporary(n)) {
        let fate = at(sweep_one(folder, &name, kind, &mut owners), "clean up", &name)?;
        let path = folder.path().join(&name);
        if matches!(fate, SweepResult::Repaired(_)) {
            // The file has other clusters now.
            owners = Owners::default();
        }
        match &fate {
            SweepResult::Removed => tracing::info!("removed the temporary file {}", path.display()),
            SweepResult::Repaired(of) => tracing::warn!(
                "{} and {} shared their clusters after a power cut; the file has got its own",
                path.display(),
                of.to_string_lossy()
            ),
            SweepResult::InUse => tracing::debug!("{} is in use", path.display()),
            SweepResult::Left => {
                tracing::warn!("{} was being made when the power went; it stays", path.display());
            }
            SweepResult::Kept(why) => tracing::warn!("{} stays: {why}; see `copal doctor`", path.display()),
        }
        swept.push((name, fate));
    }
    if folder.is_fat() && !swept.is_empty() {
        make_writable_again(folder, was)?;
    }
    Ok(swept)
}

fn sweep_one(
    folder: &Folder,
    name: &OsStr,
    kind: Option<FileKind>,
    owners: &mut Owners,
) -> io::Result<SweepResult> {
    // A folder may share its cluster with its future name, and nothing shows that.
    if kind != Some(FileKind::File) {
        return Ok(SweepResult::Left);
    }
    let file = folder.open_file(name)?;
    match lock(&file) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(SweepResult::InUse),
        Err(e) => return Err(e),
    }
    if let Some(obstacle) = folder.obstacle(name, owners)? {
        return Ok(SweepResult::Kept(obstacle));
    }
    if let Some(twin) = folder.twin(name)? {
        separate(folder, name, file, &twin)?;
        return Ok(SweepResult::Repaired(twin));
    }
    // Locked until the name has gone: a process that has just created it sees that it was taken.
    match unlink_open(folder, name, Some(file)) {
        // It took its place meanwhile.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        removed => removed?,
    }
    Ok(SweepResult::Removed)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::temporary::temporary_name;
    use super::*;

    #[test]
    fn a_temporary_that_is_swept_before_it_is_locked_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        let name = temporary_name(1);
        let make = || File::create_new(dir.path().join(&name)).unwrap();
        let kept = |file: &File| folder.keep(&name, file).map_err(|e| e.kind());

        let file = make();
        kept(&file).unwrap();
        assert!(matches!(sweep(&folder).unwrap()[..], [(_, SweepResult::InUse)]));
        drop(file);
        let swept = folder.open_file(&name).unwrap();
        assert!(matches!(sweep(&folder).unwrap()[..], [(_, SweepResult::Removed)]));
        assert_eq!(kept(&swept), Err(io::ErrorKind::AlreadyExists));
        // Another process has taken the name since.
        let _other = make();
        assert_eq!(kept(&swept), Err(io::ErrorKind::AlreadyExists));
        // The sweep has it open.
        let sweeping = folder.open_file(&name).unwrap();
        lock(&sweeping).unwrap();
        assert_eq!(kept(&folder.open_file(&name).unwrap()), Err(io::ErrorKind::AlreadyExists));
    }
}
