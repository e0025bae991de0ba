//! The write sequences on ext4, whose journal has more to do than FAT.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use copal::sys::crash_point;
use copal::sys::file::{self, Content, Folder};

use crate::kit::disk::{Loop, MIB, mount, run};
use crate::kit::needs;

/// The inode number of the first open file without a name, as the medium has it, and not the kernel's cache: `s_last_orphan` of
/// <https://docs.kernel.org/filesystems/ext4/globals.html>. The superblock starts at byte 1024.
fn last_orphan(medium: &Path) -> u32 {
    let bytes = fs::read(medium).unwrap();
    u32::from_le_bytes(bytes[1024 + 0xe8..][..4].try_into().unwrap())
}

/// Of "by fatrw".
const MD5: &str = "6c6aa83cbba6d572c21a6fd644be645d";

/// The superblock has a checksum and two sectors: a write that changes it may be torn, and then the file system is lost.
#[test]
fn no_step_changes_the_superblock_of_ext4() {
    if !needs::can_run("no_step_changes_the_superblock_of_ext4") {
        return;
    }
    let disk = Loop::new(8 * MIB);
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-O", "^orphan_file", "-b", "1024", disk.name()]).unwrap();
    let mounted = mount(&disk.node, &[]);
    let folder = Folder::open(&mounted.point).unwrap();
    let name = OsStr::new;
    fs::write(mounted.point.join("CPL00001.TMP"), "left by a killed change").unwrap();
    let side = format!(".record.0badcafe.{MD5}.md5sum");
    fs::write(mounted.point.join(side), "by fatrw").unwrap();

    let found = Arc::new(Mutex::new(Vec::new()));
    let seen = found.clone();
    let medium = disk.file.clone();
    let armed = crash_point::arm(move |step, _| {
        seen.lock().unwrap().push((step.to_owned(), last_orphan(&medium)));
        Ok(())
    });
    fs::write(mounted.point.join("record"), "").unwrap();
    assert!(file::rename_side_file(&folder, name("record")).unwrap());
    for text in ["old", "new"] {
        file::replace(&folder, name("record"), &Content::Bytes(text.as_bytes())).unwrap();
        let both =
            [(name("a"), Content::Bytes(text.as_bytes())), (name("b"), Content::Bytes(text.as_bytes()))];
        file::replace_together(&folder, &both).unwrap();
    }
    assert!(file::remove(&folder, name("record")).unwrap());
    file::make_folder(&folder, name("made")).unwrap();
    file::remove_folder(&folder, name("made")).unwrap();
    drop(armed);

    let found = found.lock().unwrap();
    assert!(found.iter().any(|(step, _)| step == "flush"), "{found:?}");
    let open: Vec<_> = found.iter().filter(|(_, orphan)| *orphan != 0).collect();
    assert!(open.is_empty(), "{open:?}");
}
