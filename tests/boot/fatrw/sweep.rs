//! A temporary file that shares its clusters with a file, as half a rename leaves them: removing it would free the file's clusters.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

use copal::sys::crash_point::{self, Answer};
use copal::sys::file::{self, Folder, SweepResult};

use super::rig::{folder, only, see};

const KERNEL_NAME: &str = "vmlinuz";
const TEMPORARY: &str = "CPL00001.TMP";

/// By name.
type Contents = BTreeMap<String, Vec<u8>>;

/// What a sweep of these two files says, its calls, and what it leaves, if the temporary one shares its clusters with `twin`.
fn swept(twin: &str) -> (io::Result<Vec<SweepResult>>, Vec<String>, Contents) {
    let (_dir, path) = folder(&[(KERNEL_NAME, b"new"), (TEMPORARY, b"new")]);
    let open = Folder::open(&path).unwrap();
    let seen: Rc<RefCell<Vec<String>>> = Rc::default();
    let (all, twin) = (seen.clone(), twin.to_owned());
    let armed = crash_point::arm(move |step, at| {
        let name = at.file_name().unwrap().to_str().unwrap();
        let step = match step.split(' ').next().unwrap() {
            "rename" => format!("rename to {name}"),
            "unlink" => format!("unlink {name}"),
            _ => step.to_owned(),
        };
        let asks = step == "twin";
        all.borrow_mut().push(step);
        if asks && name == TEMPORARY { Err(io::Error::other(Answer(twin.clone().into()))) } else { Ok(()) }
    });
    let result = file::sweep(&open);
    drop(armed);
    (result.map(|all| all.into_iter().map(|(_, fate)| fate).collect()), seen.take(), see(&path))
}

#[test]
fn the_file_has_clusters_of_its_own_on_the_medium_before_the_temporary_one_goes() {
    let (result, steps, left) = swept(KERNEL_NAME);
    assert_eq!(left, only(KERNEL_NAME, b"new"));
    assert_eq!(result.unwrap(), [SweepResult::Repaired(KERNEL_NAME.into())]);
    let at = |what: &str| steps.iter().position(|s| s == what).unwrap_or_else(|| panic!("{what}: {steps:?}"));
    let (rename, unlink) = (at(&format!("rename to {KERNEL_NAME}")), at(&format!("unlink {TEMPORARY}")));
    assert!(rename < unlink, "{steps:?}");
    assert_eq!(steps[rename + 1..unlink], ["sync", "sync folder", "flush"], "{steps:?}");
    assert_eq!(steps[unlink + 1..], ["sync folder", "flush"], "{steps:?}");
}

/// Nothing says which of them is the file's.
#[test]
fn two_temporary_ones_that_share_their_clusters_stay() {
    let (result, steps, left) = swept("CPL00002.TMP");
    let e = result.unwrap_err();
    assert!(e.to_string().contains(TEMPORARY), "{e}");
    assert!(!steps.iter().any(|s| s.starts_with("unlink") || s.starts_with("rename")), "{steps:?}");
    assert_eq!(left.into_keys().collect::<Vec<_>>(), [TEMPORARY, KERNEL_NAME]);
}
