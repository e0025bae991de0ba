//! Stopped after every step, and with every step failing: what is there then, and that the next run makes it right.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;

use copal::hooks::builtin::bootfiles::{Hands, Purpose, deploy_by};
use copal::sys::file::{self, Content, Folder, Outcome, Steps, is_temporary};

use super::golden::{NEW, OLD, RUNNING, UPDATED};
use super::support::{Device, md5sum_is_content};
use crate::kit::files::{Tree, tree};

/// Counts every step on the boot partition, and does not do some of them.
struct Faulty {
    n: Cell<usize>,
    from: usize,
    count: usize,
}

impl Faulty {
    fn step<T>(&self, does: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let n = self.n.replace(self.n.get() + 1);
        if n >= self.from && n - self.from < self.count {
            return Err(io::Error::other("as ordered"));
        }
        does()
    }

    fn met(&self) -> bool {
        self.n.get() > self.from
    }
}

struct Rigged<'a>(&'a Faulty, &'a Folder);

impl Steps for Rigged<'_> {
    fn names(&self) -> io::Result<Vec<OsString>> {
        self.1.names()
    }
    fn same_name(&self, a: &OsStr, b: &OsStr) -> bool {
        Steps::same_name(self.1, a, b)
    }
    fn holds(&self, name: &OsStr, content: &Content<'_>) -> io::Result<bool> {
        self.0.step(|| Steps::holds(self.1, name, content))
    }
    fn hold(&self, name: &OsStr) -> io::Result<Option<File>> {
        self.1.hold(name)
    }
    fn create(&self, name: &OsStr, content: &Content<'_>) -> io::Result<File> {
        self.0.step(|| self.1.create(name, content))
    }
    fn write(&self, file: &File, content: &Content<'_>) -> io::Result<()> {
        self.0.step(|| self.1.write(file, content))
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        self.0.step(|| self.1.sync(file))
    }
    fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        self.0.step(|| self.1.rename(from, to))
    }
    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        self.0.step(|| self.1.unlink(name))
    }
    fn make(&self, name: &OsStr) -> io::Result<File> {
        self.0.step(|| self.1.make(name))
    }
    fn hold_folder(&self, name: &OsStr) -> io::Result<File> {
        self.1.hold_folder(name)
    }
    fn unlink_folder(&self, name: &OsStr) -> io::Result<()> {
        self.0.step(|| self.1.unlink_folder(name))
    }
    fn sync_folder(&self) -> io::Result<()> {
        self.0.step(|| self.1.sync_folder())
    }
    fn flush(&self) -> io::Result<()> {
        self.0.step(|| self.1.flush())
    }
}

impl Hands for Faulty {
    fn replace(&self, folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
        file::replace_by(&Rigged(self, folder), name, content)
    }
    fn remove(&self, folder: &Folder, name: &OsStr) -> io::Result<bool> {
        file::remove(&Rigged(self, folder), name)
    }
    fn make_folder(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        file::make_folder(&Rigged(self, folder), name)
    }
    fn remove_folder(&self, folder: &Folder, name: &OsStr) -> io::Result<()> {
        self.step(|| file::sweep(&folder.enter(name)?))?;
        file::remove_folder(&Rigged(self, folder), name)
    }
    fn touch(&self, _: &Folder, _: &OsStr) -> io::Result<()> {
        self.step(|| Ok(()))
    }
}

/// Files, with neither folders nor what a cut leaves.
fn files(seen: &Tree) -> Tree {
    let is_file =
        |name: &str| !name.ends_with('/') && !is_temporary(OsStr::new(name.rsplit('/').next().unwrap()));
    seen.iter().filter(|(n, _)| is_file(n)).map(|(n, c)| (n.clone(), c.clone())).collect()
}

/// Every file is the old one or the new one; nothing else has come, nothing gone.
fn whole(seen: &Tree, old: &Tree, new: &Tree, context: &str) {
    for (path, content) in files(seen) {
        assert!(
            old.get(&path) == Some(&content) || new.get(&path) == Some(&content),
            "{context}: {path}: {content}"
        );
    }
    for path in files(old).keys() {
        assert!(seen.contains_key(path), "{context}: {path} is gone");
    }
}

const ALL: usize = usize::MAX;

#[test]
fn every_cut_of_an_update_can_be_continued_or_undone() {
    let (old, new) = (tree(OLD), tree(UPDATED));
    let mut stops = 0;
    for from in 0.. {
        let device = Device::new(OLD, NEW);
        let faulty = Faulty { n: Cell::new(0), from, count: ALL };
        let result = deploy_by(&device.request(Purpose::Update), &faulty);
        if !faulty.met() {
            result.unwrap();
            break;
        }
        stops += 1;
        let context = format!("cut at {from}");
        whole(&device.see(), &old, &new, &context);
        assert!(device.record().is_some(), "{context}");
        if from % 2 == 0 {
            device.update().unwrap();
            assert_eq!(files(&device.see()), files(&new), "{context}");
        } else {
            device.release(RUNNING);
            device.undo().unwrap();
            for (path, content) in RUNNING.iter().filter(|f| f.0 != "config.json") {
                assert_eq!(device.see()[*path], *content, "{context}");
            }
        }
        assert!(md5sum_is_content(&device.boot()), "{context}");
    }
    assert!(stops > 60, "{stops} stops");
}

#[test]
fn every_failing_step_of_an_update_takes_new_files_away_again() {
    let (old, new) = (tree(OLD), tree(UPDATED));
    let mut failed = 0;
    for from in 0.. {
        let device = Device::new(OLD, NEW);
        let faulty = Faulty { n: Cell::new(0), from, count: 1 };
        let result = deploy_by(&device.request(Purpose::Update), &faulty);
        if !faulty.met() {
            break;
        }
        let context = format!("failed at {from}");
        let seen = device.see();
        whole(&seen, &old, &new, &context);
        if result.is_err() {
            failed += 1;
            for path in ["extra_uEnv.txt", "new/deep/file", "new/deep/", "new/"] {
                // A folder that was being made stays under its temporary name: it may share its cluster.
                let being_made = |n: &String| {
                    let last = n.trim_end_matches('/').rsplit('/').next().unwrap();
                    n.starts_with(path) && n.ends_with('/') && is_temporary(OsStr::new(last))
                };
                let held = path.ends_with('/') && seen.keys().any(being_made);
                assert!(held || !seen.contains_key(path), "{context}: {path} is left");
            }
        } else {
            // A time that could not be refreshed is no failure.
            assert_eq!(files(&seen), files(&new), "{context}");
        }
        device.update().unwrap();
        assert_eq!(files(&device.see()), files(&new), "{context}");
    }
    assert!(failed > 50, "{failed} failed");
}

/// One file that cannot be written does not keep the others from being put back.
#[test]
fn an_undo_goes_on_after_a_failure() {
    struct OneBad(&'static str);
    impl Hands for OneBad {
        fn replace(&self, folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
            if name == self.0 {
                return Err(io::Error::other("as ordered"));
            }
            file::replace(folder, name, content)
        }
    }
    let device = Device::new(OLD, NEW);
    device.update().unwrap();
    device.release(RUNNING);
    let e = deploy_by(&device.request(Purpose::Undo), &OneBad("image-version-info")).unwrap_err();
    assert!(e.message().contains("image-version-info"), "{e}");
    let seen = device.see();
    assert_eq!(seen["image-version-info"], "new");
    assert_eq!((seen["overlays/b.dtbo"].as_str(), seen["zImage"].as_str()), ("old b", "old kernel"));
    assert!(md5sum_is_content(&device.boot()));
}

/// The record is on the medium before the first change.
#[test]
fn the_record_comes_first() {
    struct Asking<'a>(&'a Device, Cell<usize>);
    impl Hands for Asking<'_> {
        fn replace(&self, folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
            assert!(self.0.record().is_some());
            self.1.set(self.1.get() + 1);
            file::replace(folder, name, content)
        }
    }
    let device = Device::new(OLD, NEW);
    let asking = Asking(&device, Cell::new(0));
    deploy_by(&device.request(Purpose::Update), &asking).unwrap();
    assert!(asking.1.get() > 3);
}
