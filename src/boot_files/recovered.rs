//! Files into which `fsck.vfat` recovers unreferenced clusters after a power cut: `FSCK0000.REC` and so on, in the top directory (dosfstools,
//! `src/check.c`). They take space that an update needs, and may hold the only copy of a file of the owner.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::file::{self, Content, FileKind, Folder};
use crate::sys::mount;

const DIRECTORY: &str = "/mnt/data/copal/fsck";
const DATA: &str = "/mnt/data";

/// Lists the recovered files in the top directory of a boot partition, with their sizes in bytes.
pub(crate) fn list(top: &Folder) -> io::Result<Vec<(OsString, u64)>> {
    let mut found = Vec::new();
    for (name, kind) in top.list()? {
        if kind == Some(FileKind::File) && is_recovered(&name) {
            found.push((name.clone(), top.entry(&name)?.map_or(0, |entry| entry.size)));
        }
    }
    found.sort();
    Ok(found)
}

/// `FSCK`, four digits, `.REC`: a name in capitals has no long form on a FAT.
fn is_recovered(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix("FSCK")?.strip_suffix(".REC"));
    number.is_some_and(|number| number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// In words, for messages.
pub(crate) fn named(files: &[(OsString, u64)]) -> String {
    let words = files.iter().map(|(name, size)| format!("{} ({size} bytes)", name.to_string_lossy()));
    words.collect::<Vec<_>>().join(", ")
}

/// Moves them to the data partition, each only once its copy was read back from there. Returns whether there were any; an error names those that
/// stay.
pub(crate) fn move_away(paths: &Paths, top: &Folder) -> Result<bool> {
    let shown = top.path().display().to_string();
    let failed = |what: &str, e: io::Error| {
        Error::new(Code::BootPartitionFull, format!("cannot move {what} from {shown} to {DIRECTORY}"))
            .object(&shown)
            .because(e)
            .with_hint(format!(
                "move what `fsck` has recovered off {shown}: it may be the only copy of a file"
            ))
    };
    let files = list(top).map_err(|e| failed("what fsck has recovered", e))?;
    if files.is_empty() {
        return Ok(false);
    }
    let all = named(&files);
    let to = directory(paths).map_err(|e| failed(&all, e))?;
    for (at, (name, _)) in files.iter().enumerate() {
        let moved = move_one(top, name, &to);
        let left = files.get(at..).map(named).unwrap_or_default();
        let kept = moved.map_err(|e| failed(&left, e))?;
        tracing::warn!(
            "{} has too little space: {}, which fsck has recovered, is {} now; look whether it is a file of yours",
            top.path().display(),
            name.display(),
            to.path().join(kept).display()
        );
    }
    Ok(true)
}

/// Without the data partition, it would be in memory or in the root that the update erases.
fn directory(paths: &Paths) -> io::Result<Folder> {
    let mounts = mount::read_mounts(&paths.at("/proc/self/mountinfo"))?;
    if !mounts.iter().any(|mount| mount.point == Path::new(DATA)) {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the data partition is not mounted"));
    }
    let path = paths.at(DIRECTORY);
    file::make_folders(&path)?;
    let directory = Folder::open(&path)?;
    file::sweep(&directory)?;
    Ok(directory)
}

/// An earlier file of that name stays.
fn move_one(top: &Folder, name: &OsStr, to: &Folder) -> io::Result<OsString> {
    let content = top.open_file(name)?;
    let names = std::iter::once(name.to_owned()).chain((1..).map(|n: u32| {
        let mut name = name.to_owned();
        name.push(format!(".{n}"));
        name
    }));
    for kept in names {
        if to.entry(&kept)?.is_none() || to.holds(&kept, &Content::File(&content))? {
            file::replace(to, &kept, &Content::File(&content))?;
            file::remove(top, name)?;
            return Ok(kept);
        }
    }
    Err(io::Error::other("each name is taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(mounts: &str) -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        for directory in ["mnt/boot", "mnt/data", "proc/self"] {
            std::fs::create_dir_all(dir.path().join(directory)).unwrap();
        }
        std::fs::write(dir.path().join("proc/self/mountinfo"), mounts).unwrap();
        (dir, paths)
    }

    const DATA_MOUNTED: &str = "30 1 179:6 / /mnt/data rw - ext4 /dev/mmcblk0p6 rw\n";

    #[test]
    fn only_what_fsck_has_recovered_is_moved_and_nothing_is_lost() {
        let (dir, paths) = device(DATA_MOUNTED);
        let boot = dir.path().join("mnt/boot");
        let put = |name: &str, text: &str| std::fs::write(boot.join(name), text).unwrap();
        for other in [
            "FSCK000.REC",
            "fsck0001.rec",
            "FSCK00001.REC",
            "FSCK0001.REC.old",
            "FSCKABCD.REC",
            "config.json",
        ] {
            put(other, "mine");
        }
        std::fs::create_dir(boot.join("FSCK0009.REC")).unwrap();
        let top = Folder::open(&boot).unwrap();
        assert!(!move_away(&paths, &top).unwrap());
        put("FSCK0000.REC", "{\"uuid\": 1}");
        put("FSCK0001.REC", "x");
        assert_eq!(named(&list(&top).unwrap()), "FSCK0000.REC (11 bytes), FSCK0001.REC (1 bytes)");
        assert!(move_away(&paths, &top).unwrap());
        let kept =
            |name: &str| std::fs::read_to_string(dir.path().join("mnt/data/copal/fsck").join(name)).ok();
        assert_eq!(kept("FSCK0000.REC").as_deref(), Some("{\"uuid\": 1}"));
        assert_eq!(std::fs::read_dir(&boot).unwrap().count(), 7);
        // The next power cut has made one of the same name; one that a cut has left in both places is not doubled.
        put("FSCK0000.REC", "another");
        put("FSCK0001.REC", "x");
        assert!(move_away(&paths, &top).unwrap());
        assert_eq!(kept("FSCK0000.REC").as_deref(), Some("{\"uuid\": 1}"));
        assert_eq!(kept("FSCK0000.REC.1").as_deref(), Some("another"));
        assert_eq!(kept("FSCK0001.REC.1"), None);
        assert!(list(&top).unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_moved_stays_and_is_named() {
        let (dir, paths) = device("");
        let boot = dir.path().join("mnt/boot");
        std::fs::write(boot.join("FSCK0003.REC"), "mine").unwrap();
        let top = Folder::open(&boot).unwrap();
        let e = move_away(&paths, &top).unwrap_err();
        assert_eq!(e.code(), Code::BootPartitionFull);
        assert!(e.message().contains("FSCK0003.REC (4 bytes)") && e.message().contains("not mounted"), "{e}");
        std::fs::write(dir.path().join("proc/self/mountinfo"), DATA_MOUNTED).unwrap();
        // Something is in the way.
        std::fs::write(dir.path().join("mnt/data/copal"), "").unwrap();
        assert!(move_away(&paths, &top).unwrap_err().message().contains("FSCK0003.REC"));
        assert!(boot.join("FSCK0003.REC").exists());
    }
}
