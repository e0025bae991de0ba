//! Replaces, removes and reads back files; power may fail between any two instructions.
//!
//! FAT has no journal: its directory entries, its table and its data reach the medium in any order. The steps and their order
//! follow a write log of a real vfat (`docs/boot-partition.md`). Other file systems need fewer steps, but get the same.

mod append;
mod commit;
mod content;
mod fat;
mod flush;
mod folder;
mod immutable;
mod in_place;
mod listing;
mod overwrite;
mod place;
mod replace;
mod shared_clusters;
mod side;
mod sweep;
mod temporary;
mod version;

pub(crate) use append::reserve;
pub use append::{append, tail};
pub(crate) use commit::current_content;
pub use commit::{commit_side_files, open_current, rename_side_file};
pub use content::Content;
pub(crate) use fat::Owners;
pub use fat::{ClusterMap, Obstacle};
pub(crate) use flush::{flush_node, sync_file_system};
pub use folder::{FileKind, Folder, FolderEntry, Space};
pub use immutable::clear_immutable;
pub use in_place::{change_in_place, differing};
pub use listing::Listing;
pub use overwrite::overwrite;
pub(crate) use place::Place;
pub use replace::{
    Outcome, make_folder, remove, remove_folder, remove_irregular, replace, replace_listed, replace_together,
};
pub(crate) use replace::{make_folders, rehearse};
pub(crate) use side::{is_side_file, owners};
pub use sweep::{SweepResult, sweep};
pub use temporary::is_temporary;
pub(crate) use version::Version;

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use nix::fcntl::OFlag;

/// The unit in which a drive writes, in bytes: 512 also on drives with larger physical sectors, which change a part of one by
/// reading and writing all of it.
pub(crate) const SECTOR: usize = 512;

/// For reading; never waits for a pipe, as a plain open would.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// For reading a record: a regular file of root, or of this user. Another user may have put anything in its place, so that no link is
/// followed, and no pipe, folder or device is opened.
pub(crate) fn open_record(path: &Path) -> io::Result<File> {
    let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits();
    if !fs::symlink_metadata(path)?.is_file() {
        return refused("not a regular file");
    }
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let there = file.metadata()?;
    match there.uid() {
        _ if !there.is_file() => refused("not a regular file"),
        owner if owner == 0 || owner == nix::unistd::geteuid().as_raw() => Ok(file),
        _ => refused("it does not belong to root"),
    }
}

pub(crate) fn read_record(path: &Path, limit: u64) -> io::Result<String> {
    text(whole(&open_record(path)?, limit)?)
}

/// The whole content of a regular file that another program may have created.
pub(crate) fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    text(read_bytes(path, limit)?)
}

pub(crate) fn read_bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    whole(&open_regular(path)?, limit)
}

fn whole(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// The same file, by whatever name; or the same name, where there is none yet.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(x), Ok(y)) => (x.dev(), x.ino()) == (y.dev(), y.ino()) || (x.rdev() != 0 && x.rdev() == y.rdev()),
        (Err(_), Err(_)) => {
            let absolute = |p: &Path| {
                let path = std::path::absolute(p).ok()?;
                Some((path.parent()?.canonicalize().ok()?, path.file_name()?.to_owned()))
            };
            absolute(a).is_some_and(|x| Some(x) == absolute(b))
        }
        _ => false,
    }
}

/// A folder for this user alone, even if another program made it with other permissions.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(PRIVATE).create(folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    if fs::metadata(folder)?.mode() & 0o7777 != PRIVATE {
        fs::set_permissions(folder, Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

const PRIVATE: u32 = 0o700;

fn at<T>(result: io::Result<T>, step: &str, name: &std::ffi::OsStr) -> io::Result<T> {
    result.map_err(|e| io::Error::new(e.kind(), format!("{step} {}: {e}", name.to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn a_folder_that_is_open_to_read_keeps_its_content() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "old").unwrap();
        let folder = Folder::open_to_read(dir.path()).unwrap();
        let replaced = replace(&folder, "file".as_ref(), &Content::Bytes(b"new")).unwrap_err();
        assert!(replaced.to_string().contains("open to read"), "{replaced}");
        assert_eq!(folder.list().unwrap().len(), 1);
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"old");
    }

    #[test]
    fn a_file_is_read_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_text(&file, 5).unwrap(), "12345");
        assert_eq!(read_text(&file, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_text(dir.path(), 4).unwrap_err().kind(), ErrorKind::InvalidInput);
        // An open without O_NONBLOCK would wait until a process writes to the pipe.
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_text(&pipe, 4).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(read_text(&dir.path().join("none"), 4).unwrap_err().kind(), ErrorKind::NotFound);
        // It has no length and no end.
        assert_eq!(read_text(Path::new("/dev/zero"), 4).unwrap_err().kind(), ErrorKind::InvalidInput);
        fs::write(&file, [0xff]).unwrap();
        assert_eq!(read_text(&file, 5).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_record_is_a_regular_file_of_root_and_nothing_that_another_user_put_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("record"), "12345").unwrap();
        assert_eq!(read_record(&at("record"), 5).unwrap(), "12345");
        assert_eq!(read_record(&at("record"), 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read_record(&at("none"), 4).unwrap_err().kind(), ErrorKind::NotFound);
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("record", at("link")).unwrap();
        std::os::unix::fs::symlink("none", at("dangling")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for other in ["pipe", "link", "dangling", "socket", "."] {
            assert_eq!(read_record(&at(other), 5).unwrap_err().kind(), ErrorKind::InvalidInput, "{other}");
        }
        assert_eq!(read_record(Path::new("/dev/zero"), 5).unwrap_err().kind(), ErrorKind::InvalidInput);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(at("record"), Some(65534), None).unwrap();
            assert_eq!(read_record(&at("record"), 5).unwrap_err().kind(), ErrorKind::InvalidInput);
        } else {
            eprintln!("not run: a record of another user: needs root");
        }
    }
}
