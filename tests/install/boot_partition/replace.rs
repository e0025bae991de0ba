//! The sequence of a replacement: stopped after every step, and with every step failing.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use copal::sys::file::{self, Content, Folder, Outcome, Steps, is_temporary};

use super::support::see;
use crate::kit::let_go::let_go;

/// A folder that takes down every step, and does not do some.
struct Rigged<'a> {
    folder: &'a Folder,
    steps: RefCell<Vec<String>>,
    /// The first step that is not done.
    from: usize,
    /// How many are not done.
    count: usize,
    met: Cell<bool>,
}

impl<'a> Rigged<'a> {
    fn new(folder: &'a Folder, from: usize, count: usize) -> Self {
        Rigged { folder, steps: RefCell::default(), from, count, met: Cell::new(false) }
    }

    fn step<T>(&self, what: String, does: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let n = self.steps.borrow().len();
        self.steps.borrow_mut().push(what);
        if n >= self.from && n - self.from < self.count {
            self.met.set(true);
            return Err(io::Error::other("as ordered"));
        }
        does()
    }

    fn list(&self) -> Vec<String> {
        self.steps.borrow().clone()
    }
}

fn plain(name: &OsStr) -> &str {
    if is_temporary(name) { "T" } else { name.to_str().unwrap() }
}

impl Steps for Rigged<'_> {
    fn names(&self) -> io::Result<Vec<OsString>> {
        self.step("names".into(), || self.folder.names())
    }
    fn same_name(&self, a: &OsStr, b: &OsStr) -> bool {
        a == b
    }
    fn holds(&self, name: &OsStr, content: &Content<'_>) -> io::Result<bool> {
        self.step(format!("holds {}", plain(name)), || self.folder.holds(name, content))
    }
    fn hold(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.step(format!("hold {}", plain(name)), || self.folder.hold(name))
    }
    fn create(&self, name: &OsStr, content: &Content<'_>) -> io::Result<File> {
        self.step(format!("create {}", plain(name)), || self.folder.create(name, content))
    }
    fn write(&self, file: &File, content: &Content<'_>) -> io::Result<()> {
        // Half of it is there when it fails.
        if let Content::Bytes(bytes) = content {
            self.folder.write(file, &Content::Bytes(&bytes[..bytes.len() / 2]))?;
        }
        self.step("write".into(), || self.folder.write(file, content))
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        self.step("sync".into(), || self.folder.sync(file))
    }
    fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.step(format!("rename {} {}", plain(from), plain(to)), || self.folder.rename(from, to))
    }
    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        self.step(format!("unlink {}", plain(name)), || self.folder.unlink(name))
    }
    fn make(&self, name: &OsStr) -> io::Result<File> {
        self.step(format!("make {}", plain(name)), || self.folder.make(name))
    }
    fn hold_folder(&self, name: &OsStr) -> io::Result<File> {
        self.step(format!("hold {}", plain(name)), || self.folder.hold_folder(name))
    }
    fn unlink_folder(&self, name: &OsStr) -> io::Result<()> {
        self.step(format!("unlink {}", plain(name)), || self.folder.unlink_folder(name))
    }
    fn sync_folder(&self) -> io::Result<()> {
        self.step("sync folder".into(), || self.folder.sync_folder())
    }
    fn flush(&self) -> io::Result<()> {
        self.step("flush".into(), || self.folder.flush())
    }
    fn close(&self, file: File) -> io::Result<()> {
        let gone = file.metadata()?.nlink() == 0;
        self.step(if gone { "free" } else { "close" }.into(), || self.folder.close(file))
    }
}

const SIDE: &str = ".f.0123abcd.00112233445566778899aabbccddeeff.md5sum";
const NAME: &str = "f";

fn folder(old: Option<&str>, side: bool) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("boot");
    std::fs::create_dir(&path).unwrap();
    if let Some(old) = old {
        std::fs::write(path.join(NAME), old).unwrap();
    }
    if side {
        std::fs::write(path.join(SIDE), "stale").unwrap();
    }
    (dir, path)
}

fn run(path: &Path, from: usize, count: usize) -> (io::Result<Outcome>, Vec<String>, bool) {
    let folder = Folder::open(path).unwrap();
    let rigged = Rigged::new(&folder, from, count);
    let result = file::replace_by(&rigged, OsStr::new(NAME), &Content::Bytes(b"new content"));
    (result, rigged.list(), rigged.met.get())
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
        &side,
        &unlink,
        "sync folder",
        "flush",
        "free",
        "flush",
        // The old one is held; the new one is complete on the medium, its table first.
        "holds f",
        "hold f",
        "names",
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
    assert_eq!(see(&path).into_iter().collect::<Vec<_>>(), [(NAME.to_owned(), "new content".to_owned())]);
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
                    let there = std::fs::read_to_string(path.join(NAME)).ok();
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
                    file::replace(&open, OsStr::new(NAME), &Content::Bytes(b"new content")).unwrap();
                    let wanted = [(NAME.to_owned(), "new content".to_owned())];
                    assert_eq!(see(&path).into_iter().collect::<Vec<_>>(), wanted, "{context}");
                }
                assert!(stops >= 16, "{stops} stops");
            }
        }
    }
}

#[test]
fn an_equal_file_is_not_written() {
    let (_dir, path) = folder(Some("new content"), false);
    let before = std::fs::metadata(path.join(NAME)).unwrap();
    let (result, steps, _) = run(&path, usize::MAX, 0);
    assert_eq!(result.unwrap(), Outcome::Unchanged);
    // But it is made sure of: somebody may have written it a moment ago without syncing.
    assert_eq!(steps, ["names", "holds f", "sync folder", "flush"]);
    let after = std::fs::metadata(path.join(NAME)).unwrap();
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
    assert_eq!(names, [other, NAME]);
}

/// A medium that loses what it is given must not cost the old file.
#[test]
fn what_reads_back_differently_does_not_replace() {
    struct Lying<'a>(Rigged<'a>);
    impl Steps for Lying<'_> {
        fn write(&self, file: &File, _: &Content<'_>) -> io::Result<()> {
            self.0.write(file, &Content::Bytes(b"new cOntent"))
        }
        fn names(&self) -> io::Result<Vec<OsString>> {
            self.0.names()
        }
        fn same_name(&self, a: &OsStr, b: &OsStr) -> bool {
            a == b
        }
        fn holds(&self, name: &OsStr, content: &Content<'_>) -> io::Result<bool> {
            self.0.holds(name, content)
        }
        fn hold(&self, name: &OsStr) -> io::Result<Option<File>> {
            self.0.hold(name)
        }
        fn create(&self, name: &OsStr, content: &Content<'_>) -> io::Result<File> {
            self.0.create(name, content)
        }
        fn sync(&self, file: &File) -> io::Result<()> {
            self.0.sync(file)
        }
        fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
            self.0.rename(from, to)
        }
        fn unlink(&self, name: &OsStr) -> io::Result<()> {
            self.0.unlink(name)
        }
        fn make(&self, name: &OsStr) -> io::Result<File> {
            self.0.make(name)
        }
        fn hold_folder(&self, name: &OsStr) -> io::Result<File> {
            self.0.hold_folder(name)
        }
        fn unlink_folder(&self, name: &OsStr) -> io::Result<()> {
            self.0.unlink_folder(name)
        }
        fn sync_folder(&self) -> io::Result<()> {
            self.0.sync_folder()
        }
        fn flush(&self) -> io::Result<()> {
            self.0.flush()
        }
    }
    let (_dir, path) = folder(Some("old"), false);
    let open = Folder::open(&path).unwrap();
    let lying = Lying(Rigged::new(&open, usize::MAX, 0));
    let e = file::replace_by(&lying, OsStr::new(NAME), &Content::Bytes(b"new content")).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::InvalidData);
    assert_eq!(see(&path).into_iter().collect::<Vec<_>>(), [(NAME.to_owned(), "old".to_owned())]);
}

#[test]
fn removing_frees_only_what_has_gone_from_the_medium() {
    let (_dir, path) = folder(Some("old"), false);
    let open = Folder::open(&path).unwrap();
    let rigged = Rigged::new(&open, usize::MAX, 0);
    assert!(file::remove(&rigged, OsStr::new(NAME)).unwrap());
    assert_eq!(rigged.list(), ["names", "hold f", "unlink f", "sync folder", "flush", "free", "flush"]);
    assert!(!file::remove(&open, OsStr::new(NAME)).unwrap());
    assert!(see(&path).is_empty());
}

#[test]
fn a_folder_gets_its_name_when_it_is_on_the_medium() {
    let (_dir, path) = folder(None, false);
    let open = Folder::open(&path).unwrap();
    let rigged = Rigged::new(&open, usize::MAX, 0);
    file::make_folder(&rigged, OsStr::new("d")).unwrap();
    assert_eq!(
        rigged.list(),
        ["names", "make T", "sync", "sync folder", "flush", "rename T d", "sync", "sync folder", "flush"]
    );
    let rigged = Rigged::new(&open, usize::MAX, 0);
    file::remove_folder(&rigged, OsStr::new("d")).unwrap();
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
