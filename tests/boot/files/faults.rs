//! Stopped after every step, and with every step failing: what is there then, and that the next run makes it right.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::rc::Rc;

use copal::boot_files::deploy::Purpose;
use copal::sys::crash_point::{self, Armed};
use copal::sys::file::is_temporary;

use super::golden::{NEW, OLD, RUNNING, UPDATED};
use super::support::{Device, md5sum_is_content};
use crate::kit::files::{Tree, tree};

/// Counts every step on the boot partition, and does not do some of them.
struct Faulty {
    _armed: Armed,
    n: Rc<Cell<usize>>,
    from: usize,
}

impl Faulty {
    fn new(device: &Device, from: usize, count: usize) -> Faulty {
        let n: Rc<Cell<usize>> = Rc::default();
        let (counted, boot) = (n.clone(), device.boot());
        let armed = crash_point::arm(move |step, path| {
            // These change nothing.
            let looks = ["names", "hold", "close", "free", "twin", "owners"].contains(&step);
            if looks || !path.starts_with(&boot) {
                return Ok(());
            }
            let n = counted.replace(counted.get() + 1);
            if n >= from && n - from < count { Err(io::Error::other("as ordered")) } else { Ok(()) }
        });
        Faulty { _armed: armed, n, from }
    }

    fn met(&self) -> bool {
        self.n.get() > self.from
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
        let before = device.see();
        let faulty = Faulty::new(&device, from, ALL);
        let result = device.deploy(Purpose::Update);
        if !faulty.met() {
            result.unwrap();
            break;
        }
        drop(faulty);
        stops += 1;
        let context = format!("cut at {from}");
        whole(&device.see(), &old, &new, &context);
        assert!(device.record().is_some() || device.see() == before, "{context}");
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
    assert!(stops > 100, "{stops} stops");
}

#[test]
fn every_failing_step_of_an_update_takes_new_files_away_again() {
    let (old, new) = (tree(OLD), tree(UPDATED));
    let mut failed = 0;
    for from in 0.. {
        let device = Device::new(OLD, NEW);
        let faulty = Faulty::new(&device, from, 1);
        let result = device.deploy(Purpose::Update);
        if !faulty.met() {
            break;
        }
        drop(faulty);
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
            // A time that could not be refreshed does not fail the hook.
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
    let device = Device::new(OLD, NEW);
    device.update().unwrap();
    device.release(RUNNING);
    let bad = crash_point::arm(|step, path| match step.starts_with("rename") {
        true if path.ends_with("image-version-info") => Err(io::Error::other("as ordered")),
        _ => Ok(()),
    });
    let e = device.deploy(Purpose::Undo).unwrap_err();
    drop(bad);
    assert!(e.message().contains("image-version-info"), "{e}");
    let seen = device.see();
    assert_eq!(seen["image-version-info"], "new");
    assert_eq!((seen["overlays/b.dtbo"].as_str(), seen["zImage"].as_str()), ("old b", "old kernel"));
    assert!(md5sum_is_content(&device.boot()));
}

/// The record is on the medium before the first change.
#[test]
fn the_record_comes_first() {
    let device = Device::new(OLD, NEW);
    let (changes, boot, record) =
        (Rc::new(Cell::new(0)), device.boot(), device.at("/mnt/state/copal/bootfiles"));
    let counted = changes.clone();
    let _armed = crash_point::arm(move |step, path| {
        let change = ["create", "make", "rename", "unlink"].iter().any(|c| step.starts_with(c));
        if change && path.starts_with(&boot) {
            assert!(record.is_file(), "{step} {}", path.display());
            counted.set(counted.get() + 1);
        }
        Ok(())
    });
    device.deploy(Purpose::Update).unwrap();
    assert!(changes.get() > 6);
}
