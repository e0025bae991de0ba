//! Which call follows which: on a FAT each step has to be on the medium before the next (`docs/boot-partition.md`). No test without a
//! virtual machine has a FAT, so what the calls are, and in which order, is all that can be seen here.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use copal::sys::crash_point;
use copal::sys::file::{self, Content, Folder, Outcome, is_temporary};

use super::rig::{folder, only, see};
use crate::kit::needs::needs;
use crate::kit::{disk, needs};

const KERNEL_NAME: &str = "vmlinuz";

/// The calls of `does` on a folder with these files, each with the name it is about: `T` is the temporary one.
fn steps(files: &[(&str, &[u8])], does: impl FnOnce(&Folder)) -> Vec<String> {
    let (_dir, path) = folder(files);
    let open = Folder::open(&path).unwrap();
    let seen: Rc<RefCell<Vec<String>>> = Rc::default();
    let (all, top) = (seen.clone(), path.clone());
    let armed = crash_point::arm(move |step, at| {
        let name = at.strip_prefix(&top).unwrap().to_str().unwrap().to_owned();
        let plain =
            |name: &str| if is_temporary(OsStr::new(name)) { "T".to_owned() } else { name.to_owned() };
        let step = step.split(' ').map(plain).collect::<Vec<_>>().join(" ");
        all.borrow_mut().push(format!("{step} {}", plain(&name)).trim().to_owned());
        Ok(())
    });
    does(&open);
    drop(armed);
    seen.take()
}

/// What a new file or folder goes through under its temporary name.
const ON_THE_MEDIUM: [&str; 3] = ["sync", "sync folder", "flush"];

#[test]
fn a_file_is_replaced_by_one_that_is_complete_before_it_has_the_name() {
    let found = steps(&[(KERNEL_NAME, b"old")], |open| {
        let done = file::replace(open, OsStr::new(KERNEL_NAME), &Content::Bytes(b"new"));
        assert_eq!(done.unwrap(), Outcome::Written);
    });
    let wanted = [
        &["names", "holds vmlinuz", "hold vmlinuz", "create T", "write 3"][..],
        // The table before the entry that leads into it, and all of it before the rename.
        &["flush"],
        &ON_THE_MEDIUM,
        &["holds T", "rename T vmlinuz"],
        // The new entry, before the clusters of the old file are free for others.
        &ON_THE_MEDIUM,
        &["close", "free", "flush"],
    ];
    assert_eq!(found, wanted.concat());
}

#[test]
fn a_file_that_is_right_is_flushed_all_the_same() {
    let found = steps(&[(KERNEL_NAME, b"new")], |open| {
        let done = file::replace(open, OsStr::new(KERNEL_NAME), &Content::Bytes(b"new"));
        assert_eq!(done.unwrap(), Outcome::Unchanged);
    });
    // Another program may have written it a moment ago.
    assert_eq!(found, ["names", "holds vmlinuz", "sync folder", "flush"]);
}

#[test]
fn a_name_goes_before_its_clusters_do() {
    let found =
        steps(&[(KERNEL_NAME, b"old")], |open| assert!(file::remove(open, OsStr::new(KERNEL_NAME)).unwrap()));
    assert_eq!(found, ["names", "hold vmlinuz", "unlink vmlinuz", "sync folder", "flush", "free", "flush"]);
    let found = steps(&[(KERNEL_NAME, b"")], |open| {
        std::fs::create_dir(open.path().join("EFI")).unwrap();
        file::remove_folder(open, OsStr::new("EFI")).unwrap();
    });
    assert_eq!(found, ["names", "hold EFI", "unlink EFI", "sync folder", "flush", "free", "flush"]);
}

#[test]
fn a_folder_is_empty_on_the_medium_before_it_has_its_name() {
    let found = steps(&[], |open| file::make_folder(open, OsStr::new("EFI")).unwrap());
    let wanted = [&["names", "make T"][..], &ON_THE_MEDIUM, &["rename T EFI"], &ON_THE_MEDIUM];
    assert_eq!(found, wanted.concat());
}

#[test]
fn a_sector_is_on_the_medium_before_the_next_one_is_written() {
    let (old, mut new) = (vec![1; 1200], vec![1; 1200]);
    new[0] = 2;
    new[1100] = 2;
    let found = steps(&[(KERNEL_NAME, &old)], |open| {
        let done = file::change_in_place(open, OsStr::new(KERNEL_NAME), &old, &new, &[2, 0]);
        assert_eq!(done.unwrap(), Outcome::Written);
    });
    let wanted = [
        "names",
        "holds vmlinuz",
        "open in place vmlinuz",
        "sector 2",
        "flush",
        "sector 0",
        "flush",
        "close",
        "holds vmlinuz",
    ];
    assert_eq!(found, wanted);
}

/// A cut of the run before may have left clusters past the end: a FAT refuses to grow such a chain.
#[test]
fn a_file_that_grows_where_it_lies_is_cut_to_its_size_before() {
    let found = steps(&[(KERNEL_NAME, b"old")], |open| {
        let done = file::overwrite(open, OsStr::new(KERNEL_NAME), &Content::Bytes(b"longer"));
        assert_eq!(done.unwrap(), Outcome::Written);
    });
    let wanted = [
        &["open to write vmlinuz", "names", "holds vmlinuz", "cut 3", "put 3+3", "flush"][..],
        &ON_THE_MEDIUM,
        &["put 0+3"],
        &ON_THE_MEDIUM,
        &["holds vmlinuz"],
    ];
    assert_eq!(found, wanted.concat());
}

/// The page cache says what was written, and the medium something else.
#[test]
fn what_is_read_back_comes_from_the_medium() {
    needs!(needs::can_run);
    const BLOCK: usize = 1024;
    let device = disk::Loop::new(16 << 20);
    disk::run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", device.name()]).unwrap();
    let mounted = disk::mount(&device.node, &[]);
    let path = mounted.point.join("boot");
    std::fs::create_dir(&path).unwrap();
    let (written, damaged) = ([b'w'; BLOCK], [b'd'; BLOCK]);
    let open = Folder::open(&path).unwrap();
    let holds = |what: &[u8]| open.holds(OsStr::new(KERNEL_NAME), &Content::Bytes(what)).unwrap();
    file::replace(&open, OsStr::new(KERNEL_NAME), &Content::Bytes(&written)).unwrap();
    // In the cache again.
    assert_eq!(see(&path), only(KERNEL_NAME, &written));
    // Below the file system: the one block with that content.
    let medium = OpenOptions::new().read(true).write(true).open(&device.file).unwrap();
    let mut all = vec![0; 16 << 20];
    medium.read_exact_at(&mut all, 0).unwrap();
    let block = all.chunks(BLOCK).position(|block| block == written).unwrap();
    medium.write_all_at(&damaged, u64::try_from(block * BLOCK).unwrap()).unwrap();
    assert_eq!(see(&path), only(KERNEL_NAME, &written), "the cache has the old content");
    assert!(!holds(&written));
    assert!(holds(&damaged));
}
