//! A power cut before each change while the owner's files are copied.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use copal::boot_files::install::{Destination, Files};
use copal::sys::crash_point;

use super::support::Rig;
use crate::kit::prove;

/// In the order in which an installation copies them.
const FILES: [&str; 3] = ["own.dtb", "overlays/new/one.dtbo", "extra_uEnv.txt"];

/// The medium has "new" in each file, and the internal partition "old" in two of them.
fn rig() -> Rig {
    let new = FILES.map(|name| (name, "new"));
    Rig::new(&new, &[("own.dtb", "old"), ("extra_uEnv.txt", "old")])
}

/// Copies, and all calls from number `cut` on fail. Returns how many calls there were before that.
fn deploy(rig: &Rig, cut: usize) -> (copal::error::Result<()>, usize) {
    let mut files = Files::of(&rig.medium).unwrap();
    for name in FILES {
        assert!(files.add(Path::new(name)).unwrap());
    }
    let calls = Rc::new(Cell::new(0));
    let counted = calls.clone();
    let armed = crash_point::arm(move |_, _| match counted.get() {
        n if n >= cut => Err(io::Error::other("cut")),
        n => {
            counted.set(n + 1);
            Ok(())
        }
    });
    let done = Destination::open(&rig.dest, None).and_then(|dest| {
        files.check(&dest)?;
        files.deploy(&dest).map(drop)
    });
    drop(armed);
    (done, calls.get())
}

#[test]
fn a_file_is_old_or_new_and_what_names_it_is_new_last() {
    let (done, total) = deploy(&rig(), usize::MAX);
    done.unwrap();
    assert!(total > 40, "{total}");
    let test = "a_file_is_old_or_new_and_what_names_it_is_new_last";
    for cut in prove::cases("cuts", test, total, 12) {
        let rig = rig();
        let e = deploy(&rig, cut).0.unwrap_err();
        let there = FILES.map(|name| std::fs::read_to_string(rig.dest.join(name)).ok());
        for (name, text) in FILES.iter().zip(&there) {
            let whole = text.as_deref().is_none_or(|t| t == "new" || t == "old");
            assert!(
                whole && (text.is_some() || name.starts_with("overlays")),
                "cut {cut}: {name}: {text:?}: {e}"
            );
        }
        if there[2].as_deref() == Some("new") {
            assert!(there.iter().all(|t| t.as_deref() == Some("new")), "cut {cut}: {there:?}");
        }
        let again = deploy(&rig, usize::MAX).0;
        again.unwrap_or_else(|e| panic!("cut {cut}: the next run does not complete it: {e}"));
        for name in FILES {
            assert_eq!(std::fs::read_to_string(rig.dest.join(name)).unwrap(), "new", "cut {cut}");
        }
    }
}
