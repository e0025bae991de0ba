//! An update carries a device tree into a new boot folder, with a power cut before each call.

use std::cell::Cell;
use std::fs;
use std::io;
use std::rc::Rc;

use copal::config::paths::Paths;
use copal::device_tree::NewRelease;
use copal::sys::crash_point;

use crate::kit::device_tree::model;

#[test]
fn at_every_cut_a_carried_file_is_whole_or_absent() {
    let (own, theirs) = (model("the owner's", 6000), b"the release's\n");
    let mut cuts = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for (path, text) in [
            ("mnt/boot/extra_uEnv.txt", &b"custom_fdt_file=trees/own.dtb\n"[..]),
            ("mnt/boot/copal/keep", b"pinned.dtb\n"),
            ("mnt/sysroot/active/current/boot/trees/own.dtb", &own),
            ("mnt/sysroot/active/current/boot/pinned.dtb", &own),
            ("new/pinned.dtb", theirs),
        ] {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), text).unwrap();
        }
        let read = |path: &str| fs::read(at(path)).ok();
        let release = NewRelease::read(&Paths::new(dir.path()), false);
        let reached = Rc::new(Cell::new(0));
        let counted = reached.clone();
        let armed = crash_point::arm(move |_, _| {
            counted.set(counted.get() + 1);
            if counted.get() > cuts { Err(io::Error::other("the power is cut")) } else { Ok(()) }
        });
        let cut = release.carry(&at("new"));
        drop(armed);
        assert!(read("new/trees/own.dtb").is_none_or(|text| text == own), "cut {cuts}");
        let pinned = read("new/pinned.dtb").unwrap();
        assert!(pinned == own || pinned == theirs, "cut {cuts}");
        let is_done = cut.problems.is_empty();
        assert!(!is_done || cut.carried.len() == 2, "cut {cuts}: {cut:?}");
        assert!(release.carry(&at("new")).problems.is_empty(), "cut {cuts}");
        for path in ["new/trees/own.dtb", "new/pinned.dtb"] {
            assert_eq!(read(path).as_ref(), Some(&own), "cut {cuts}");
        }
        if is_done && reached.get() <= cuts {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 30, "{cuts} calls");
}
