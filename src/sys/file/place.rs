//! Where a path leads.
//!
//! In a folder where every user may create names, such as `/tmp`, the link of another user could lead a program of root to any file. The
//! kernel's rule for that is `protected_symlinks` (`Documentation/admin-guide/sysctl/fs.rst`), which is not on everywhere, and which does
//! not concern a program that reads links itself, as `realpath(3)` does. This has the same rule, always, for every part of a path.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AT_FDCWD, OFlag, openat, readlinkat};
use nix::libc;
use nix::sys::stat::Mode;

/// As many as the kernel follows (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// A name in an open folder: nothing that happens to the path can lead elsewhere any more.
#[derive(Debug)]
pub(crate) struct Place {
    folder: File,
    path: PathBuf,
}

impl Place {
    /// Follows links, also one of the last name; what that leads to must exist.
    pub(crate) fn of(path: &Path) -> io::Result<Place> {
        let mut parts: VecDeque<OsString> = path.components().map(|c| c.as_os_str().to_owned()).collect();
        let start = if path.is_absolute() { "/" } else { "." };
        let mut folder = File::from(openat(AT_FDCWD, start, FOLDER_FLAGS, Mode::empty())?);
        let mut reached = if path.is_absolute() { PathBuf::new() } else { std::env::current_dir()? };
        let (mut links, mut promised) = (0, false);
        while let Some(part) = parts.pop_front() {
            match Path::new(&part).components().next() {
                Some(Component::Normal(_)) => {}
                Some(Component::CurDir) | None => continue,
                Some(upwards) => {
                    folder = File::from(openat(&folder, upwards.as_os_str(), FOLDER_FLAGS, Mode::empty())?);
                    reached.push(upwards);
                    if upwards == Component::ParentDir {
                        reached.pop();
                        reached.pop();
                    }
                    continue;
                }
            }
            let last = parts.is_empty();
            let there = match openat(&folder, part.as_os_str(), PATH_ONLY, Mode::empty()) {
                Ok(there) => File::from(there),
                Err(nix::errno::Errno::ENOENT) if last && !promised => {
                    return Ok(Place { folder, path: reached.join(part) });
                }
                Err(e) => return Err(e.into()),
            };
            let kind = there.metadata()?;
            if kind.is_symlink() {
                may_follow(&folder.metadata()?, &kind, &reached.join(&part))?;
                promised |= last;
                links += 1;
                if links > MOST_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                let to = PathBuf::from(readlinkat(&there, "")?);
                for part in to.components().rev() {
                    parts.push_front(part.as_os_str().to_owned());
                }
            } else if last {
                return Ok(Place { folder, path: reached.join(part) });
            } else {
                // Not `there`: opening the folder itself triggers an automount.
                folder = File::from(openat(&folder, part.as_os_str(), FOLDER_FLAGS, Mode::empty())?);
                reached.push(part);
            }
        }
        Err(io::ErrorKind::IsADirectory.into())
    }

    /// Without links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    pub(crate) fn folder(&self) -> io::Result<super::Folder> {
        super::Folder::at(&self.folder, self.path.parent().unwrap_or(Path::new("/")))
    }

    /// The name by way of the open folder, for calls that take a path.
    pub(crate) fn handle(&self) -> PathBuf {
        self.folder_handle().join(self.name())
    }

    pub(crate) fn folder_handle(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.folder.as_raw_fd()).into()
    }
}

const FOLDER_FLAGS: OFlag =
    OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
const PATH_ONLY: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// `may_follow_link` of Linux (`fs/namei.c`).
fn may_follow(folder: &Metadata, link: &Metadata, path: &Path) -> io::Result<()> {
    let shared = libc::S_ISVTX | libc::S_IWOTH;
    let own = link.uid() == nix::unistd::geteuid().as_raw();
    if own || folder.permissions().mode() & shared != shared || folder.uid() == link.uid() {
        return Ok(());
    }
    let text =
        format!("the link {} belongs to another user, and every user can put one there", path.display());
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    fn leads(path: &Path) -> io::Result<PathBuf> {
        Place::of(path).map(|place| place.path().to_owned())
    }

    #[test]
    fn links_are_followed_as_by_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/b/file"), "").unwrap();
        symlink("a/b", top.join("relative")).unwrap();
        symlink(top.join("relative"), top.join("a/absolute")).unwrap();
        symlink("../b/./file", top.join("a/b/link")).unwrap();
        symlink("circle", top.join("circle")).unwrap();
        symlink("none", top.join("dangling")).unwrap();
        for way in ["a/b/file", "relative/file", "a/absolute/file", "a/absolute/../b/link", "relative/link"] {
            let path = top.join(way);
            assert_eq!(leads(&path).unwrap(), path.canonicalize().unwrap(), "{way}");
        }
        assert_eq!(leads(&top.join("relative/new")).unwrap(), top.join("a/b/new"));
        for (way, kind) in [
            ("dangling", io::ErrorKind::NotFound),
            ("none/file", io::ErrorKind::NotFound),
            ("a/b/file/x", io::ErrorKind::NotADirectory),
            ("a/..", io::ErrorKind::IsADirectory),
        ] {
            assert_eq!(leads(&top.join(way)).unwrap_err().kind(), kind, "{way}");
        }
        assert_eq!(leads(&top.join("circle")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(leads(Path::new("/")).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        let here = std::env::current_dir().unwrap();
        assert_eq!(leads(Path::new("./Cargo.toml")).unwrap(), here.join("Cargo.toml"));
    }

    #[test]
    fn a_link_of_another_user_in_a_folder_for_all_users_is_not_followed() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("not run: links of other users: needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        fs::create_dir_all(dir.path().join("to")).unwrap();
        fs::create_dir(&shared).unwrap();
        fs::write(dir.path().join("to/file"), "").unwrap();
        symlink("../to", shared.join("folder")).unwrap();
        symlink("../to/file", shared.join("file")).unwrap();
        let follows = |mode: u32, owner: u32, link: u32| {
            fs::set_permissions(&shared, Permissions::from_mode(mode)).unwrap();
            chown(&shared, Some(owner), None).unwrap();
            for name in ["folder", "file"] {
                lchown(shared.join(name), Some(link), None).unwrap();
            }
            let (deep, last) = (leads(&shared.join("folder/file")), leads(&shared.join("file")));
            assert_eq!(deep.is_ok(), last.is_ok());
            deep.is_ok()
        };
        assert!(!follows(0o1777, 0, 65534));
        assert!(!follows(0o1777, 65533, 65534));
        assert!(follows(0o1777, 0, 0), "the follower's own");
        assert!(follows(0o1777, 65534, 65534), "that of the folder's owner");
        assert!(follows(0o777, 0, 65534), "not sticky");
        assert!(follows(0o1775, 0, 65534), "not for every user");
    }
}
