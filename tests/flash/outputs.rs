//! What a flash writes besides the target: an LED, a receipt, its own output. None of them may be the image, what belongs to it, the target, or a disk.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::kit::needs::{needs, tools};
use crate::kit::process::{stderr, tool};
use crate::support::*;

#[track_caller]
fn assert_refused(out: &Output, exit: i32, code: &str) {
    let text = stderr(out);
    assert_eq!(out.status.code(), Some(exit), "{text}");
    assert!(text.contains(&format!("[{code}]")), "{text}");
}

#[test]
fn an_led_is_a_file_of_sysfs() {
    let Some(disk) = dirty("an_led_is_a_file_of_sysfs", 100 * MIB) else { return };
    let Some(other) = dirty("an_led_is_a_file_of_sysfs", MIB) else { return };
    let dir = folder();
    let (image, file, fifo) = (dir.path().join("os.img"), dir.path().join("file"), dir.path().join("fifo"));
    std::fs::copy(os_image(), &image).unwrap();
    std::fs::write(&file, "kept").unwrap();
    tool(&["mkfifo", fifo.to_str().unwrap()]);
    for led in [disk.node.as_path(), &other.node, &image, &file, &fifo, dir.path(), Path::new("/dev/tty0")] {
        if led.exists() {
            assert_refused(&flash(&image, &disk.node, &["--led", led.to_str().unwrap()]), 2, "usage");
        }
    }
    assert_equal(os_image(), &image);
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    for node in [&disk.node, &other.node] {
        assert!(read(node, 0, MIB).iter().all(|b| *b == 0xA5), "{}", node.display());
    }
    // One that is not there yet, or no longer, stops nothing.
    flashed(&image, &disk.node, &["--led", "/sys/class/leds/none/brightness"]);
    assert_equal(&image, &disk.node);
}

#[test]
fn what_belongs_to_the_image_is_neither_target_nor_receipt() {
    needs!(tools);
    let dir = folder();
    let (image, target) = (dir.path().join("os.img"), dir.path().join("disk"));
    std::fs::copy(os_image(), &image).unwrap();
    for name in ["os.img.sha256", "os.img.bmap", "os.bmap", "os.img.sig"] {
        let beside = dir.path().join(name);
        // Also where it is still to be made.
        for make in [false, true] {
            if make {
                std::fs::write(&beside, "kept").unwrap();
            }
            assert_refused(&flash(&image, &beside, &[]), 3, "target-is-image");
        }
        std::fs::remove_file(&beside).unwrap();
        let out = flash(&image, &target, &["--receipt", beside.to_str().unwrap()]);
        assert_refused(&out, 3, "output-failed");
        assert!(!beside.exists() && !target.exists());
    }
}

/// The receipt would be printed over the image.
#[test]
fn the_output_of_the_program_is_no_target() {
    needs!(tools);
    let dir = folder();
    let to = |target: &Path, stdout: File| {
        copal()
            .arg("flash")
            .arg(os_image())
            .arg(target)
            .stdout(stdout)
            .stderr(Stdio::piped())
            .output()
            .unwrap()
    };
    let file = dir.path().join("output");
    for target in [Path::new("/dev/stdout"), Path::new("/dev/fd/1"), Path::new("/proc/self/fd/1"), &file] {
        let out = to(target, File::create(&file).unwrap());
        assert_refused(&out, 3, "target-in-use");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 0, "{}", target.display());
    }
    let Some(disk) = dirty("the_output_of_the_program_is_no_target", 100 * MIB) else { return };
    let out = to(&disk.node, OpenOptions::new().write(true).open(&disk.node).unwrap());
    assert_refused(&out, 3, "target-in-use");
    assert!(read(&disk.node, 0, MIB).iter().all(|b| *b == 0xA5));
}

/// Linux has names of bytes, JSON has text.
#[test]
fn names_that_are_not_unicode_are_in_the_receipt_and_marked() {
    needs!(tools);
    let dir = folder();
    let (target, image) =
        (dir.path().join(OsStr::from_bytes(b"t\xff.img")), dir.path().join(OsStr::from_bytes(b"o\xfe.img")));
    std::fs::copy(os_image(), &image).unwrap();
    let receipt = dir.path().join("receipt.json");
    let out = copal().arg("flash").args([&image, &target]).arg("--receipt").arg(&receipt).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
    let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&receipt).unwrap()).unwrap();
    assert_eq!(found["image"]["name"], "o\u{fffd}.img (not UTF-8)");
    assert!(found["target"]["name"].as_str().unwrap().ends_with("/t\u{fffd}.img (not UTF-8)"), "{found}");
    for call in [vec!["flash", "--json"], vec!["flash", "--json", "--plan"]] {
        let out = copal().args(&call).args([&image, &target]).output().unwrap();
        assert_eq!(
            (out.status.code(), &last_line(&out)["ok"]),
            (Some(0), &true.into()),
            "{call:?}: {}",
            stderr(&out)
        );
    }
    for verb in ["info", "digest"] {
        let out = copal().args([verb, "--json"]).arg(&image).output().unwrap();
        let line = last_line(&out);
        assert_eq!((out.status.code(), &line["ok"]), (Some(0), &true.into()), "{verb}: {line}");
    }
}
