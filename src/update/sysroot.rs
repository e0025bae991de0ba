//! A slot: the folders and links by which it boots a container image.
//!
//! - `balena/…`: the engine's data
//! - `hostapps/<container>/boot` → `../../balena/volumes/<volume>/_data`
//! - `current` → `hostapps/<container>`; or → `kept-boot`, which has a `boot`, while an update fills a slot that the bootloader always reads
//! - `boot` → `current/boot`
//! - `sbin/init` → `../current/boot/init`
//! - `counter`: the slot with the higher number was installed later
//!
//! All links are relative: a running slot has another mount point. Each change is one rename, on the medium before the next begins.
//! Names of temporaries are fixed, so that the next start finds what a power cut left.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::error::{Code, Error, Result};
use crate::sys::file;

/// Mount points and folders that the running system needs before the container's root is mounted.
const FOLDERS: [&str; 10] =
    ["dev", "etc", "balena", "hostapps", "mnt/state", "proc", "run", "sbin", "sys", "tmp"];

/// Has the boot folder of the former hostapp while the slot is filled. It is not in `hostapps`: nothing takes it for a hostapp.
const KEPT_FOLDER: &str = "kept-boot";

/// In every slot, whatever is installed.
const LINKS: [(&str, &str); 2] = [("sbin/init", "../current/boot/init"), ("boot", "current/boot")];

#[derive(Debug, Clone)]
pub struct Sysroot {
    path: PathBuf,
}

impl Sysroot {
    #[must_use]
    pub fn at(path: PathBuf) -> Self {
        Sysroot { path }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub fn engine(&self) -> PathBuf {
        self.path.join("balena")
    }

    pub(crate) fn make_skeleton(&self) -> Result<()> {
        for name in FOLDERS {
            let path = self.path.join(name);
            fs::create_dir_all(&path).map_err(|e| failed("create the folder", &path, e))?;
        }
        let id = self.path.join("etc/machine-id");
        // Empty: the first boot of this slot fills it; an existing identity stays.
        let made = OpenOptions::new().append(true).create(true).open(&id);
        made.map_err(|e| failed("make", &id, e))?;
        for (name, target) in LINKS {
            let path = self.path.join(name);
            if fs::read_link(&path).is_ok_and(|to| to == Path::new(target)) {
                continue;
            }
            link(&path, Path::new(target)).map_err(|e| failed("create the link", &path, e))?;
        }
        Ok(())
    }

    /// Bytes of the files that [`keep_boot_folder`](Sysroot::keep_boot_folder) keeps.
    pub(crate) fn boot_folder_size(&self) -> Result<u64> {
        let boot = self.path.join("current/boot");
        if !boot.is_dir() {
            return Ok(0);
        }
        size_of(&boot).map_err(|e| failed("read", &boot, e))
    }

    /// Keeps the boot folder of the current hostapp readable as `current/boot` until [`make_current`](Sysroot::make_current) replaces it.
    /// The files get a second name each, so that they outlive the engine's volume. To be called before the slot is emptied; fails with
    /// nothing removed.
    pub(crate) fn keep_boot_folder(&self) -> Result<()> {
        let (current, kept) = (self.path.join("current"), self.path.join(KEPT_FOLDER));
        if fs::read_link(&current).is_ok_and(|to| to == Path::new(KEPT_FOLDER)) {
            // By an interrupted update. `current` leads there only when the folder is complete.
            return Ok(());
        }
        let boot = current.join("boot");
        if !boot.is_dir() {
            tracing::debug!("{} has no boot folder to keep", self.path.display());
            return Ok(());
        }
        let made = || -> io::Result<()> {
            remove_tree(&kept)?;
            fs::create_dir(&kept)?;
            link_tree(&boot, &kept.join("boot"))
        };
        if let Err(e) = made() {
            self.drop_kept();
            return Err(failed("keep the boot folder of the slot in", &kept, e));
        }
        self.flush()?;
        link(&current, Path::new(KEPT_FOLDER)).map_err(|e| failed("create the link", &current, e))?;
        self.flush()
    }

    fn drop_kept(&self) {
        let kept = self.path.join(KEPT_FOLDER);
        if let Err(e) = remove_tree(&kept) {
            tracing::warn!("cannot remove {}: {e}", kept.display());
        }
    }

    /// Removes the former hostapp. `current` then dangles, unless the boot folder is kept. That does no harm where the bootloader reads the
    /// selected slot only.
    pub(crate) fn remove_hostapps(&self) {
        let folder = self.path.join("hostapps");
        let Ok(entries) = fs::read_dir(&folder) else { return };
        let mut entries: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        entries.sort();
        for path in entries {
            let is_folder = fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir());
            let removed = if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            if let Err(e) = removed {
                // No link leads there any more.
                tracing::warn!("cannot remove {}: {e}", path.display());
            }
        }
    }

    pub fn add(&self, id: &str, volume: &Path) -> Result<()> {
        let (new, named) = (self.path.join("hostapps/.new"), self.path.join("hostapps").join(id));
        let made = || -> io::Result<()> {
            remove_tree(&new)?;
            fs::create_dir(&new)?;
            symlink(Path::new("../../balena").join(volume), new.join("boot"))?;
            sync_folder(&new)
        };
        made().map_err(|e| failed("make", &new, e))?;
        self.flush()?;
        fs::rename(&new, &named).map_err(|e| failed("make", &named, e))?;
        self.flush()
    }

    pub(crate) fn make_current(&self, id: &str) -> Result<()> {
        let path = self.path.join("current");
        link(&path, &Path::new("hostapps").join(id)).map_err(|e| failed("create the link", &path, e))?;
        self.flush()?;
        self.drop_kept();
        Ok(())
    }

    /// The counter of installations when this slot was installed; 0 where it is unknown.
    #[must_use]
    pub fn counter(&self) -> u64 {
        let path = self.path.join("counter");
        match file::read_text(&path, 4096) {
            Ok(text) => text.trim().parse().unwrap_or_else(|_| {
                tracing::warn!("{} holds no number; counting from 0", path.display());
                0
            }),
            Err(_) => 0,
        }
    }

    pub(crate) fn set_counter(&self, number: u64) -> Result<()> {
        let (new, path) = (self.path.join("counter.new"), self.path.join("counter"));
        let written = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(format!("{number}\n").as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_folder(&self.path)
        };
        written().map_err(|e| failed("write", &path, e))?;
        self.flush()
    }

    /// All data of the slot is on the medium on return, whichever program wrote it.
    pub fn flush(&self) -> Result<()> {
        file::sync_file_system(&self.path).map_err(|e| failed("flush", &self.path, e))
    }
}

fn link(path: &Path, target: &Path) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    symlink(target, &new)?;
    sync_folder(folder)?;
    fs::rename(&new, path)?;
    sync_folder(folder)
}

/// Removes a folder that may be missing.
fn remove_tree(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Makes the folder `to`, with a hard link for everything in `from` that is no folder.
fn link_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_tree(&entry.path(), &to)?;
        } else {
            fs::hard_link(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Bytes on the medium of everything in a folder, and a block for the copy of each folder.
fn size_of(folder: &Path) -> io::Result<u64> {
    const FOLDER: u64 = 4096;
    let mut size = FOLDER;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        let more = if meta.is_dir() { size_of(&entry.path())? } else { meta.blocks().saturating_mul(512) };
        size = size.saturating_add(more);
    }
    Ok(size)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn failed(what: &str, path: &Path, e: io::Error) -> Error {
    let full = matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let code = if full { Code::SlotFull } else { Code::UpdateFailed };
    Error::new(code, format!("cannot {what} {}", path.display())).object(path.display()).because(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> (tempfile::TempDir, Sysroot) {
        let dir = tempfile::tempdir().unwrap();
        let slot = Sysroot::at(dir.path().to_owned());
        (dir, slot)
    }

    fn leads(slot: &Sysroot, name: &str) -> PathBuf {
        fs::read_link(slot.path().join(name)).unwrap()
    }

    #[test]
    fn a_skeleton_is_created_and_repaired() {
        let (_dir, slot) = slot();
        slot.make_skeleton().unwrap();
        for folder in FOLDERS {
            assert!(slot.path().join(folder).is_dir(), "{folder}");
        }
        assert_eq!(fs::read(slot.path().join("etc/machine-id")).unwrap(), b"");
        assert_eq!(leads(&slot, "sbin/init"), Path::new("../current/boot/init"));
        assert_eq!(leads(&slot, "boot"), Path::new("current/boot"));

        fs::write(slot.path().join("etc/machine-id"), "an identity").unwrap();
        fs::remove_file(slot.path().join("sbin/init")).unwrap();
        fs::write(slot.path().join("sbin/init"), "a program").unwrap();
        fs::remove_file(slot.path().join("boot")).unwrap();
        symlink("/mnt/sysroot/inactive/current/boot", slot.path().join("boot")).unwrap();
        symlink("nowhere", slot.path().join("boot.new")).unwrap();
        fs::create_dir(slot.path().join("lost+found")).unwrap();
        slot.make_skeleton().unwrap();
        assert_eq!(fs::read(slot.path().join("etc/machine-id")).unwrap(), b"an identity");
        assert_eq!(leads(&slot, "sbin/init"), Path::new("../current/boot/init"));
        assert_eq!(leads(&slot, "boot"), Path::new("current/boot"));
        assert!(slot.path().join("lost+found").is_dir());
    }

    #[test]
    fn a_host_app_is_named_when_it_is_complete() {
        let (_dir, slot) = slot();
        slot.make_skeleton().unwrap();
        fs::create_dir_all(slot.path().join("hostapps/.new/boot/of/a/cut")).unwrap();
        fs::create_dir_all(slot.path().join("balena/volumes/v/_data")).unwrap();
        fs::write(slot.path().join("balena/volumes/v/_data/init"), "mobynit").unwrap();
        symlink("nowhere", slot.path().join("current.new")).unwrap();
        slot.add("abc", Path::new("volumes/v/_data")).unwrap();
        assert_eq!(leads(&slot, "hostapps/abc/boot"), Path::new("../../balena/volumes/v/_data"));
        assert!(slot.add("abc", Path::new("volumes/w/_data")).is_err(), "an existing one is never replaced");
        slot.make_current("abc").unwrap();
        assert_eq!(leads(&slot, "current"), Path::new("hostapps/abc"));
        assert_eq!(fs::read(slot.path().join("sbin/init")).unwrap(), b"mobynit");
        assert!(!slot.path().join("current.new").is_symlink());

        fs::write(slot.path().join("hostapps/a file"), "").unwrap();
        slot.remove_hostapps();
        assert_eq!(fs::read_dir(slot.path().join("hostapps")).unwrap().count(), 0);
        assert!(slot.path().join("balena/volumes/v/_data/init").exists(), "links are not followed");
    }

    #[test]
    fn a_boot_folder_is_kept_until_the_new_one_is_in_place() {
        let (_dir, slot) = slot();
        let read = |name: &str| fs::read_to_string(slot.path().join(name)).ok();
        slot.make_skeleton().unwrap();
        slot.keep_boot_folder().unwrap();
        assert!(!slot.path().join(KEPT_FOLDER).exists() && slot.boot_folder_size().unwrap() == 0);

        let volume = slot.path().join("balena/volumes/v");
        fs::create_dir_all(volume.join("_data/overlays")).unwrap();
        fs::write(volume.join("_data/board.dtb"), [b'd'; 5000]).unwrap();
        symlink("board.dtb", volume.join("_data/link.dtb")).unwrap();
        fs::write(volume.join("_data/overlays/hat.dtbo"), "hat").unwrap();
        slot.add("old", Path::new("volumes/v/_data")).unwrap();
        slot.make_current("old").unwrap();
        assert!((8192 + 4096..64 << 10).contains(&slot.boot_folder_size().unwrap()));
        // What an interrupted update has begun.
        fs::create_dir_all(slot.path().join(KEPT_FOLDER).join("boot/half")).unwrap();
        slot.keep_boot_folder().unwrap();
        slot.keep_boot_folder().unwrap();
        fs::remove_dir_all(volume).unwrap();
        slot.remove_hostapps();
        assert_eq!(read("boot/link.dtb").unwrap().len(), 5000);
        assert_eq!(read("boot/overlays/hat.dtbo").unwrap(), "hat");
        assert!(!slot.path().join("boot/half").exists());
        assert_eq!(crate::slot::hostapp::container(slot.path()), None, "it is no hostapp");

        fs::create_dir_all(slot.path().join("balena/volumes/w/_data")).unwrap();
        fs::write(slot.path().join("balena/volumes/w/_data/board.dtb"), "new").unwrap();
        slot.add("new", Path::new("volumes/w/_data")).unwrap();
        slot.make_current("new").unwrap();
        assert_eq!(read("boot/board.dtb").unwrap(), "new");
        assert!(!slot.path().join(KEPT_FOLDER).exists());
    }

    #[test]
    fn the_counter_is_a_number_whatever_it_was() {
        let (_dir, slot) = slot();
        assert_eq!(slot.counter(), 0);
        slot.set_counter(8).unwrap();
        assert_eq!(slot.counter(), 8);
        assert_eq!(fs::read(slot.path().join("counter")).unwrap(), b"8\n");
        fs::write(slot.path().join("counter"), "eight").unwrap();
        assert_eq!(slot.counter(), 0);
    }
}
