//! Side files that a cut-off `fatrw` has left: which one counts, and what is there whenever the power goes again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::Path;

use copal::sys::crash_point::{self, Answer};
use copal::sys::file::{self, Folder, Outcome};

use super::rig::{Rig, age, folder, only, see, side_name};
use crate::kit::let_go::let_go;

const CONFIG_NAME: &str = "config.json";

fn commit(path: &Path) -> io::Result<Outcome> {
    file::commit_side_files(&Folder::open(path).unwrap(), OsStr::new(CONFIG_NAME))
}

/// What a reader gets.
fn reads(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    file::open_current(&Folder::open(path).unwrap(), OsStr::new(CONFIG_NAME))?.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn a_complete_one_is_the_content_whatever_the_file_holds() {
    let side = side_name(CONFIG_NAME, "1234abcd", b"new");
    for old in [None, Some(&b"old"[..]), Some(b"")] {
        let mut files: Vec<(&str, &[u8])> = vec![(&side, b"new")];
        files.extend(old.map(|o| (CONFIG_NAME, o)));
        let (_dir, path) = folder(&files);
        // The file is the younger one by its time stamp: a device without a clock says so.
        age(&path.join(&side), 9999);
        assert_eq!(commit(&path).unwrap(), Outcome::Written);
        assert_eq!(see(&path), only(CONFIG_NAME, b"new"));
        assert_eq!(commit(&path).unwrap(), Outcome::Unchanged);
        assert_eq!(reads(&path).unwrap(), "new");
    }
}

#[test]
fn incomplete_ones_are_removed() {
    let wrong = side_name(CONFIG_NAME, "1234abcd", b"all of it");
    let temporary = wrong.replace("md5sum", "tmp");
    let files: [(&str, &[u8]); 5] = [
        (CONFIG_NAME, b"old"),
        (&wrong, b"all of"),
        (&temporary, b"all of it"),
        (".config.json.short.md5sum", b"x"),
        ("other", b"other"),
    ];
    let (_dir, path) = folder(&files);
    assert_eq!(reads(&path).unwrap(), "old");
    let left = BTreeMap::from([(CONFIG_NAME.into(), b"old".to_vec()), ("other".into(), b"other".to_vec())]);
    assert_eq!(see(&path), left);
    let (_dir, path) = folder(&[(&wrong, b"")]);
    assert_eq!(reads(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(see(&path).is_empty());
}

#[test]
fn of_several_the_last_one_counts() {
    let texts: [&[u8]; 3] = [b"one", b"two", b"three"];
    let names: Vec<String> = ["00000001", "00000002", "00000003"]
        .iter()
        .zip(texts)
        .map(|(r, t)| side_name(CONFIG_NAME, r, t))
        .collect();
    for (newest, text) in texts.iter().enumerate() {
        let (_dir, path) =
            folder(&[(CONFIG_NAME, b"old"), (&names[0], b"one"), (&names[1], b"two"), (&names[2], b"three")]);
        for (i, name) in names.iter().enumerate() {
            age(&path.join(name), if i == newest { 10 } else { 20 + i as u64 });
        }
        assert_eq!(reads(&path).unwrap().as_bytes(), *text);
        assert_eq!(see(&path), only(CONFIG_NAME, text));
    }
}

#[test]
fn those_of_other_files_stay() {
    let other = side_name("config.json.old", "1234abcd", b"other");
    let (_dir, path) = folder(&[(CONFIG_NAME, b"old"), (&other, b"other")]);
    assert_eq!(reads(&path).unwrap(), "old");
    assert_eq!(see(&path).len(), 2);
}

/// A folder as the power leaves it, with one that was half written and one of an earlier write.
fn torn() -> (tempfile::TempDir, std::path::PathBuf) {
    let (new, earlier) =
        (side_name(CONFIG_NAME, "aaaaaaaa", b"new"), side_name(CONFIG_NAME, "bbbbbbbb", b"earlier"));
    let half = side_name(CONFIG_NAME, "cccccccc", b"half of it");
    let made = folder(&[(CONFIG_NAME, b"old"), (&new, b"new"), (&earlier, b"earlier"), (&half, b"half")]);
    age(&made.1.join(&earlier), 100);
    made
}

#[test]
fn the_file_is_whole_and_its_readers_see_the_new_content_at_every_step() {
    let mut stops = 0;
    for count in [usize::MAX, 1] {
        for from in 0.. {
            let (_dir, path) = torn();
            let open = Folder::open(&path).unwrap();
            let rig = Rig::new(from, count);
            let result = file::commit_side_files(&open, OsStr::new(CONFIG_NAME));
            if !rig.met() {
                assert_eq!(result.unwrap(), Outcome::Written);
                break;
            }
            stops += 1;
            let context = format!("{count} from {from} of {:?}", rig.list());
            assert!(result.is_err(), "{context}");
            drop(rig);
            let there = std::fs::read(path.join(CONFIG_NAME)).unwrap();
            assert!(there == b"old" || there == b"new", "{context}");
            let_go(&path);
            file::sweep(&open).unwrap();
            assert_eq!(reads(&path).unwrap(), "new", "{context}");
            assert_eq!(see(&path), only(CONFIG_NAME, b"new"), "{context}");
        }
    }
    assert!(stops > 60, "{stops}");
}

#[test]
fn the_side_file_goes_when_the_file_is_on_the_medium() {
    let side = side_name(CONFIG_NAME, "aaaaaaaa", b"new");
    let (_dir, path) = folder(&[(CONFIG_NAME, b"old"), (&side, b"new")]);
    let open = Folder::open(&path).unwrap();
    let rig = Rig::new(usize::MAX, 0);
    file::commit_side_files(&open, OsStr::new(CONFIG_NAME)).unwrap();
    let steps = rig.list();
    let at = |what: &str| steps.iter().position(|s| s == what).unwrap_or_else(|| panic!("{what}: {steps:?}"));
    let (rename, unlink) = (at("rename T config.json"), at("unlink S"));
    assert!(rename < unlink && steps[rename..unlink].contains(&"flush".to_owned()), "{steps:?}");
    assert_eq!(steps.last().unwrap(), "flush");
}

#[test]
fn without_space_the_side_file_is_read_and_stays() {
    let (_dir, path) = torn();
    let open = Folder::open(&path).unwrap();
    let _rig = Rig::new(usize::MAX, 0).with_room(1);
    let e = file::commit_side_files(&open, OsStr::new(CONFIG_NAME)).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::StorageFull, "{e}");
    for _ in 0..2 {
        let mut text = String::new();
        file::open_current(&open, OsStr::new(CONFIG_NAME)).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "new");
        assert_eq!(std::fs::read(path.join(CONFIG_NAME)).unwrap(), b"old");
    }
    // A rename needs no space.
    assert!(file::rename_side_file(&open, OsStr::new(CONFIG_NAME)).unwrap());
    assert_eq!(see(&path), only(CONFIG_NAME, b"new"));
    assert!(!file::rename_side_file(&open, OsStr::new(CONFIG_NAME)).unwrap());
}

/// Half a rename has happened: the side file and the file are one.
#[test]
fn one_that_shares_its_clusters_is_never_simply_unlinked() {
    let side = side_name(CONFIG_NAME, "aaaaaaaa", b"new");
    type Does = fn(&Folder) -> bool;
    let all: [(Does, &[u8]); 3] = [
        (|f| file::commit_side_files(f, OsStr::new(CONFIG_NAME)).unwrap() == Outcome::Written, b"new"),
        (
            |f| {
                file::replace(f, OsStr::new(CONFIG_NAME), &file::Content::Bytes(b"newer")).unwrap()
                    == Outcome::Written
            },
            b"newer",
        ),
        (|f| file::rename_side_file(f, OsStr::new(CONFIG_NAME)).is_err(), b"new"),
    ];
    for (does, there) in all {
        let (_dir, path) = folder(&[(CONFIG_NAME, b"new"), (&side, b"new")]);
        let open = Folder::open(&path).unwrap();
        let mut own_clusters = false;
        let armed = crash_point::arm(move |step, path| {
            let is_side = path.extension().is_some_and(|e| e == "md5sum");
            match step {
                "twin" if !own_clusters => return Err(io::Error::other(Answer(CONFIG_NAME.into()))),
                "unlink" if is_side => assert!(own_clusters, "it shares its clusters, and was unlinked"),
                // Only after that does it have another name.
                _ if step.starts_with("rename") => own_clusters = true,
                _ => {}
            }
            Ok(())
        });
        assert!(does(&open));
        drop(armed);
        assert_eq!(see(&path)[CONFIG_NAME], there);
    }
}
