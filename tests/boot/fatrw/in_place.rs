//! Writing over a file where it lies: what is there at every step, and that it can be ended.

use std::ffi::OsStr;
use std::io;

use copal::sys::file::{self, Content, Folder, Outcome};

use super::rig::{Rig, folder, only, see};

const KERNEL_NAME: &str = "vmlinuz";
const STEP: usize = 256 << 10;

fn data(tag: u8, len: usize) -> Vec<u8> {
    (0..251).cycle().take(len).map(|b| tag ^ b).collect()
}

fn run(folder: &Folder, new: &[u8]) -> io::Result<Outcome> {
    file::overwrite(folder, OsStr::new(KERNEL_NAME), &Content::Bytes(new))
}

#[test]
fn front_to_back_the_end_first_where_it_grows_and_last_where_it_shrinks() {
    let side = ".vmlinuz.1234abcd.00112233445566778899aabbccddeeff.md5sum";
    for (old, new, wanted) in [
        (
            STEP + 10,
            STEP + 30,
            vec!["put 262154+20", "flush", "put 0+262144", "flush", "put 262144+10", "flush"],
        ),
        (
            STEP + 30,
            STEP + 10,
            vec!["put 0+262144", "flush", "put 262144+10", "flush", "cut 262154", "flush"],
        ),
        (7, 7, vec!["put 0+7", "flush"]),
        (0, 5, vec!["put 0+5", "flush"]),
        (5, 0, vec!["cut 0", "flush"]),
    ] {
        let new = data(2, new);
        let (_dir, path) = folder(&[(KERNEL_NAME, &data(1, old)), (side, b"stale")]);
        let open = Folder::open(&path).unwrap();
        let rig = Rig::new(usize::MAX, 0);
        assert_eq!(run(&open, &new).unwrap(), Outcome::Written);
        assert_eq!(see(&path), only(KERNEL_NAME, &new));
        let steps = rig.list();
        assert_eq!(steps.last().unwrap(), "holds vmlinuz");
        let unlinked = steps.iter().position(|s| s == "unlink S").unwrap();
        let first =
            steps.iter().position(|s| s == wanted[0]).unwrap_or_else(|| panic!("{wanted:?}: {steps:?}"));
        assert!(unlinked < first, "{steps:?}");
        let mut shown: Vec<_> = steps[first..]
            .iter()
            .filter(|s| s.starts_with("put") || s.starts_with("cut") || *s == "flush")
            .collect();
        shown.dedup();
        assert_eq!(shown, wanted);
    }
}

#[test]
fn every_stop_leaves_new_pieces_then_old_ones_and_can_be_ended() {
    for (old_len, new_len) in [(3 * STEP, 3 * STEP), (2 * STEP, 3 * STEP + 5), (3 * STEP + 5, STEP + 1)] {
        let (old, new) = (data(1, old_len), data(2, new_len));
        let mut stops = 0;
        for from in 0.. {
            let (_dir, path) = folder(&[(KERNEL_NAME, &old)]);
            let open = Folder::open(&path).unwrap();
            let rig = Rig::new(from, usize::MAX);
            let result = run(&open, &new);
            if !rig.met() {
                result.unwrap();
                break;
            }
            stops += 1;
            let steps = rig.list();
            drop(rig);
            let there = std::fs::read(path.join(KERNEL_NAME)).unwrap();
            let same = old_len.min(new_len);
            let border = (0..=same)
                .step_by(STEP)
                .chain([same])
                .find(|b| there[..*b] == new[..*b] && there[*b..same] == old[*b..same]);
            assert!(border.is_some(), "{steps:?}");
            // The old end is there until all of the new content is; what is behind the old end is new.
            assert!(
                there.len() >= same
                    && (there.len() <= old_len || there[old_len..] == new[old_len..there.len()])
            );
            assert!(there.len() == old_len || new_len > old_len || there == new);
            file::overwrite(&open, OsStr::new(KERNEL_NAME), &Content::Bytes(&new)).unwrap();
            assert_eq!(see(&path), only(KERNEL_NAME, &new));
        }
        assert!(stops >= 12, "{stops}");
    }
}

#[test]
fn pieces_that_are_right_are_left_alone() {
    let old = data(1, 3 * STEP);
    let mut new = old.clone();
    new[STEP + 1] ^= 1;
    let (_dir, path) = folder(&[(KERNEL_NAME, &old)]);
    let open = Folder::open(&path).unwrap();
    let rig = Rig::new(usize::MAX, 0);
    assert_eq!(run(&open, &new).unwrap(), Outcome::Written);
    let puts: Vec<_> = rig.list().into_iter().filter(|s| s.starts_with("put")).collect();
    assert_eq!(puts, ["put 262144+262144"]);
    drop(rig);
    let rig = Rig::new(usize::MAX, 0);
    assert_eq!(run(&open, &new).unwrap(), Outcome::Unchanged);
    assert!(!rig.list().iter().any(|s| s.starts_with("put")));
}

#[test]
fn without_space_to_grow_nothing_is_lost() {
    let (old, new) = (data(1, STEP), data(2, 3 * STEP));
    let (_dir, path) = folder(&[(KERNEL_NAME, &old)]);
    let open = Folder::open(&path).unwrap();
    let _rig = Rig::new(usize::MAX, 0).with_room(2 * STEP as u64);
    assert_eq!(run(&open, &new).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(see(&path), only(KERNEL_NAME, &old));
}

#[test]
fn there_must_be_a_file() {
    let (_dir, path) = folder(&[]);
    let open = Folder::open(&path).unwrap();
    let e = file::overwrite(&open, OsStr::new(KERNEL_NAME), &Content::Bytes(b"x")).unwrap_err();
    assert_eq!(e.kind(), io::ErrorKind::NotFound);
    std::os::unix::fs::symlink("/etc/passwd", path.join(KERNEL_NAME)).unwrap();
    assert!(file::overwrite(&open, OsStr::new(KERNEL_NAME), &Content::Bytes(b"x")).is_err());
}
