//! The sequence of a replacement: stopped after every step, and with every step failing.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use copal::sys::crash_point::{self, Armed};
use copal::sys::file::{self, Content, Folder, Outcome, is_temporary};

use super::support::see;
use crate::kit::files::in_memory;
use crate::kit::let_go::let_go;

/// What the calls of this thread are, some of which are not made.
struct Rigged {
    _armed: Armed,
    seen: Rc<RefCell<Seen>>,
}

#[derive(Default)]
struct Seen {
    steps: Vec<String>,
    met: bool,
    temporary: PathBuf,
}

impl Rigged {
    /// `from`: the first step that is not done. `count`: how many are not done.
    fn new(from: usize, count: usize) -> Self {
        let seen: Rc<RefCell<Seen>> = Rc::default();
        let all = seen.clone();
        let armed = crash_point::arm(move |step, path| {
            let mut seen = all.borrow_mut();
            let (verb, object) = step.split_once(' ').unwrap_or((step, ""));
            let name = plain(path.file_name().unwrap());
            let what = match verb {
                "twin" | "owners" => return Ok(()),
                "names" | "write" => verb.to_owned(),
                "rename" => format!("rename {} {name}", plain(object.as_ref())),
                "sync" | "flush" | "close" | "free" => step.to_owned(),
                _ => format!("{verb} {name}"),
            };
            if verb == "create" {
                seen.temporary = path.to_owned();
            }
            let n = seen.steps.len();
            seen.steps.push(what);
            if n < from || n - from >= count {
                return Ok(());
            }
            seen.met = true;
            if verb == "write" {
                let half = vec![b'n'; object.parse::<usize>().unwrap() / 2];
                std::fs::write(&seen.temporary, half).unwrap();
            }
            Err(io::Error::other("as ordered"))
        });
        Rigged { _armed: armed, seen }
    }

    fn list(&self) -> Vec<String> {
        self.seen.borrow().steps.clone()
    }
}

fn plain(name: &OsStr) -> &str {
    if is_temporary(name) { "T" } else { name.to_str().unwrap() }
}

const SIDE: &str = ".f.0123abcd.00112233445566778899aabbccddeeff.md5sum";
const FILE_NAME: &str = "f";

fn folder(old: Option<&str>, side: bool) -> (tempfile::TempDir, PathBuf) {
    let dir = in_memory();
    let path = dir.path().join("boot");
    std::fs::create_dir(&path).unwrap();
    if let Some(old) = old {
        std::fs::write(path.join(FILE_NAME), old).unwrap();
    }
    if side {
        std::fs::write(path.join(SIDE), "stale").unwrap();
    }
    (dir, path)
}

fn run(path: &Path, from: usize, count: usize) -> (io::Result<Outcome>, Vec<String>, bool) {
    let folder = Folder::open(path).unwrap();
    let rigged = Rigged::new(from, count);
    let result = file::replace(&folder, OsStr::new(FILE_NAME), &Content::Bytes(b"new content"));
    let met = rigged.seen.borrow().met;
    (result, rigged.list(), met)
}

#[test]
fn the_steps_and_their_order() {
    let (_dir, path) = folder(Some("old"), true);
    let (result, steps, _) = run(&path, usize::MAX, 0);
    assert_eq!(result.unwrap(), Outcome::Written);
    let side = format!("hold {SIDE}");
    let unlink = format!("unlink {SIDE}");
    let wanted = [
        // Side files, each freed only once its entry has gone from the medium.
        "names",
        "names",
        &side,
        &unlink,
        "sync folder",
        "flush",
        "free",
        "flush",
        // The old one is held; the new one is complete on the medium, its table first.
        "holds f",
        "hold f",
        "create T",
        "write",
        "flush",
        "sync",
        "sync folder",
        "flush",
        "holds T",
        // The new one takes the name; only when that is on the medium, the old one is let go.
        "rename T f",
        "sync",
        "sync folder",
        "flush",
        "close",
        "free",
        "flush",
    ];
    assert_eq!(steps, wanted);
    assert_eq!(
        see(&path).into_iter().collect::<Vec<_>>(),
        [(FILE_NAME.to_owned(), "new content".to_owned())]
    );
}

/// Whatever does not happen, the file is the old one or the new one; and the next run makes it right.
#[test]
fn every_prefix_leaves_old_or_new_and_can_be_continued() {
    for old in [None, Some("old")] {
        for side in [false, true] {
            // A power cut: nothing is done from some step on. Or one step fails, and the rest goes its way.
            for count in [usize::MAX, 1] {
                let mut stops = 0;
                for from in 0.. {
                    let (_dir, path) = folder(old, side);
                    let (result, steps, met) = run(&path, from, count);
                    if !met {
                        break;
                    }
                    stops += 1;
                    let context = format!("old {old:?}, side {side}, {count} from {from} of {steps:?}");
                    let there = std::fs::read_to_string(path.join(FILE_NAME)).ok();
                    assert!(there.as_deref() == old || there.as_deref() == Some("new content"), "{context}");
                    assert!(result.is_err(), "{context}");
                    let renamed = steps[..from].iter().any(|s| s.starts_with("rename"));
                    assert_eq!(there.as_deref() == Some("new content"), renamed, "{context}");
                    // What failed before the rename is cleaned up, if that is possible.
                    if count == 1 && !renamed && !steps[from].starts_with("rename") {
                        assert!(
                            see(&path).keys().all(|n| !is_temporary(OsStr::new(n))),
                            "{context}: {:?}",
                            see(&path)
                        );
                    }

                    let_go(&path);
                    let open = Folder::open(&path).unwrap();
                    file::sweep(&open).unwrap();
                    file::replace(&open, OsStr::new(FILE_NAME), &Content::Bytes(b"new content")).unwrap();
                    let wanted = [(FILE_NAME.to_owned(), "new content".to_owned())];
                    assert_eq!(see(&path).into_iter().collect::<Vec<_>>(), wanted, "{context}");
                }
                assert!(stops >= 15, "{stops} stops");
            }
        }
    }
}

#[test]
fn an_equal_file_is_not_written() {
    let (_dir, path) = folder(Some("new content"), false);
    let before = std::fs::metadata(path.join(FILE_NAME)).unwrap();
    let (result, steps, _) = run(&path, usize::MAX, 0);
    assert_eq!(result.unwrap(), Outcome::Unchanged);
    // But it is made sure of: somebody may have written it a moment ago without syncing.
    assert_eq!(steps, ["names", "holds f", "sync folder", "flush"]);
    let after = std::fs::metadata(path.join(FILE_NAME)).unwrap();
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
}

/// `fatrw` would put it over the file at its next read.
#[test]
fn a_stale_side_file_goes_also_when_the_content_is_equal() {
    let (_dir, path) = folder(Some("new content"), true);
    let other = ".f.txt.0123abcd.00112233445566778899aabbccddeeff.md5sum";
    std::fs::write(path.join(other), "of f.txt").unwrap();
    let (result, steps, _) = run(&path, usize::MAX, 0);
    assert_eq!(result.unwrap(), Outcome::Written);
    assert!(!steps.iter().any(|s| s.starts_with("create")), "{steps:?}");
    let names: Vec<_> = see(&path).into_keys().collect();
    assert_eq!(names, [other, FILE_NAME]);
}

/// A medium that loses what it is given must not cost the old file.
#[test]
fn what_reads_back_differently_does_not_replace() {
    let (_dir, path) = folder(Some("old"), false);
    let open = Folder::open(&path).unwrap();
    let (mut temporary, mut written) = (PathBuf::new(), false);
    let _armed = crash_point::arm(move |step, path| {
        match step.split(' ').next().unwrap() {
            "create" => temporary = path.to_owned(),
            "write" => written = true,
            "flush" if std::mem::take(&mut written) => std::fs::write(&temporary, "new cOntent").unwrap(),
            _ => {}
        }
        Ok(())
    });
    let e = file::replace(&open, OsStr::new(FILE_NAME), &Content::Bytes(b"new content")).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::InvalidData);
    assert_eq!(see(&path).into_iter().collect::<Vec<_>>(), [(FILE_NAME.to_owned(), "old".to_owned())]);
}

#[test]
fn removing_frees_only_what_has_gone_from_the_medium() {
    let (_dir, path) = folder(Some("old"), false);
    let open = Folder::open(&path).unwrap();
    let rigged = Rigged::new(usize::MAX, 0);
    assert!(file::remove(&open, OsStr::new(FILE_NAME)).unwrap());
    assert_eq!(rigged.list(), ["names", "hold f", "unlink f", "sync folder", "flush", "free", "flush"]);
    assert!(!file::remove(&open, OsStr::new(FILE_NAME)).unwrap());
    assert!(see(&path).is_empty());
}

#[test]
fn a_folder_gets_its_name_when_it_is_on_the_medium() {
    let (_dir, path) = folder(None, false);
    let open = Folder::open(&path).unwrap();
    let rigged = Rigged::new(usize::MAX, 0);
    file::make_folder(&open, OsStr::new("d")).unwrap();
    assert_eq!(
        rigged.list(),
        ["names", "make T", "sync", "sync folder", "flush", "rename T d", "sync", "sync folder", "flush"]
    );
    let rigged = Rigged::new(usize::MAX, 0);
    file::remove_folder(&open, OsStr::new("d")).unwrap();
    assert_eq!(&rigged.list()[..5], ["names", "hold d", "unlink d", "sync folder", "flush"]);
    assert!(see(&path).is_empty());
}

/// A cut within the rename of a new folder can leave both names with one cluster. No call shows which folders have that.
#[test]
fn a_folder_beside_a_temporary_one_is_kept() {
    let (_dir, path) = folder(None, false);
    let open = Folder::open(&path).unwrap();
    let temporary = path.join("CPL157BE.TMP");
    for name in [&path.join("d"), &temporary] {
        std::fs::create_dir(name).unwrap();
    }
    let e = file::remove_folder(&open, OsStr::new("d")).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::ResourceBusy);
    assert!(e.to_string().contains("CPL157BE.TMP"), "{e}");
    assert!(path.join("d").is_dir() && temporary.is_dir());
    // A file of that name has no cluster of a folder: `sweep` decides about it.
    std::fs::remove_dir(&temporary).unwrap();
    std::fs::write(&temporary, "").unwrap();
    file::remove_folder(&open, OsStr::new("d")).unwrap();
    assert!(!path.join("d").exists());
}

/// Permissions count on file systems that have them: hooks are executable.
#[test]
fn a_copied_file_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, path) = folder(None, false);
    let source = dir.path().join("hook");
    std::fs::write(&source, "#!/bin/sh").unwrap();
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o755)).unwrap();
    let open = Folder::open(&path).unwrap();
    file::replace(&open, OsStr::new("hook"), &Content::File(&File::open(&source).unwrap())).unwrap();
    assert_eq!(std::fs::metadata(path.join("hook")).unwrap().mode() & 0o700, 0o700);
}
