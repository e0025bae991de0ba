//! The write sequences on ext4, whose journal has more to do than FAT.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use copal::sys::command::Command;
use copal::sys::crash_point;
use copal::sys::file::{self, Content, Folder};

use crate::kit::alone::{in_own_process, is_alone};
use crate::kit::disk::{Loop, MIB, mount, run};
use crate::kit::needs::{self, needs, test_name};

/// The inode number of the first open file without a name, as the medium has it, and not the kernel's cache: `s_last_orphan` of
/// <https://docs.kernel.org/filesystems/ext4/globals.html>. The superblock starts at byte 1024.
fn last_orphan(medium: &Path) -> u32 {
    let bytes = fs::read(medium).unwrap();
    u32::from_le_bytes(bytes[1024 + 0xe8..][..4].try_into().unwrap())
}

/// Without the feature that keeps the list elsewhere.
fn ext4() -> Loop {
    let disk = Loop::new(8 * MIB);
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-O", "^orphan_file", "-b", "1024", disk.name()]).unwrap();
    disk
}

/// Of "by fatrw".
const MD5: &str = "6c6aa83cbba6d572c21a6fd644be645d";

/// The superblock has a checksum and two sectors: a write that changes it may be torn, and then the file system is lost.
///
/// In a process of its own: a program that another test starts has this one's files open for a moment.
#[test]
fn no_step_changes_the_superblock_of_ext4() {
    needs!(needs::can_run);
    if !is_alone() {
        in_own_process(test_name!(), &[]);
        return;
    }
    let disk = ext4();
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
    fs::write(mounted.point.join(format!(".record.1badcafe.{MD5}.md5sum")), "by fatrw").unwrap();
    assert_eq!(file::commit_side_files(&folder, name("record")).unwrap(), file::Outcome::Unchanged);
    fs::write(mounted.point.join("record"), "").unwrap();
    fs::write(mounted.point.join(format!(".record.2badcafe.{MD5}.md5sum")), "by fatrw").unwrap();
    assert_eq!(file::commit_side_files(&folder, name("record")).unwrap(), file::Outcome::Written);
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

/// Another thread forks while a file is open whose name then goes; the child has it open until its program begins, a second later.
#[test]
fn a_child_that_is_starting_keeps_no_file_without_a_name() {
    needs!(needs::can_run);
    if !is_alone() {
        in_own_process(test_name!(), &[]);
        return;
    }
    let disk = ext4();
    let mounted = mount(&disk.node, &[]);
    let folder = Folder::open(&mounted.point).unwrap();
    for change in ["replace", "remove"] {
        fs::write(mounted.point.join("record"), "old").unwrap();
        let orphans = Arc::new(Mutex::new(Vec::new()));
        let (seen, medium) = (orphans.clone(), disk.file.clone());
        let child = Arc::new(Mutex::new(None));
        let started = child.clone();
        let armed = crash_point::arm(move |step, _| {
            // Here the file is still open.
            if step == "close" || step == "free" {
                started.lock().unwrap().get_or_insert_with(start_slowly);
            }
            seen.lock().unwrap().push((step.to_owned(), last_orphan(&medium)));
            Ok(())
        });
        match change {
            "replace" => drop(file::replace(&folder, OsStr::new("record"), &Content::Bytes(b"new")).unwrap()),
            _ => assert!(file::remove(&folder, OsStr::new("record")).unwrap()),
        }
        drop(armed);
        child.lock().unwrap().take().expect("a child has been started").join().unwrap();
        let orphans = orphans.lock().unwrap();
        assert!(orphans.iter().all(|(_, orphan)| *orphan == 0), "{change}: {orphans:?}");
    }
}

/// A child that has been forked when this returns, and whose program begins after a second.
fn start_slowly() -> JoinHandle<()> {
    let (mut forked, told) = std::io::pipe().unwrap();
    let child = std::thread::spawn(move || {
        let _armed = crash_point::arm(move |step, _| {
            assert_eq!(step, "exec");
            (&told).write_all(b"x")?;
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        });
        assert!(Command::new("true").run(|_| ()).unwrap().is_success());
    });
    forked.read_exact(&mut [0]).unwrap();
    child
}
