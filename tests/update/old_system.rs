//! The hooks of a copal release, run by a rollback in its own root, as the old system that it is by then.

use std::fs;

use copal::config::paths::Paths;
use copal::rollback::chroot;

use crate::copal::{Board, HOOKS, assert_new_files, boot, ready, release_of, selected};
use crate::kit::needs::test_name;
use crate::rig::stderr;

/// Runs the hooks of the slot that is not running, and says what came of it.
fn act() {
    copal::sys::log::start(copal::sys::log::Voice::Legacy("rollback-health"));
    match chroot::run_old_hooks(&Paths::default()) {
        Ok(()) => eprintln!("RESULT ok"),
        Err(e) => eprintln!("RESULT error {e}"),
    }
}

/// The boot partition has no room for the files of both releases: an update is refused, a rollback goes through.
#[test]
fn a_copal_release_gets_its_boot_files_back() {
    // On the device of the test, this is the program that runs there.
    if std::env::var_os("COPAL_TEST_DEVICE").is_some() {
        return act();
    }
    let Some(rig) = ready(test_name!(), Board::Uboot) else { return };
    let act = rig.dir.path().join("upper/bin/act");
    fs::copy(std::env::current_exe().unwrap(), &act).unwrap();
    let release = release_of(Board::Uboot);
    for folder in ["boot", "state", "data", "sysroot"] {
        fs::create_dir_all(release.root().join("mnt").join(folder)).unwrap();
    }
    release.archive("registry/os:2", &rig.at("mnt/data/os.tar"));
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    // As if that release had been booted and updated: the other slot runs, with boot files of its own.
    let out = rig.run(&["env", "DURING_UPDATE=0", "hostapp-update-hooks"]);
    assert!(out.status.success() && selected(&rig, Board::Uboot).0 == "2", "{}", stderr(&out));
    rig.ok(&[
        "sh",
        "-c",
        "cd /mnt/sysroot; mkdir -p active/current/boot; cp inactive/current/boot/init active/current/boot/",
    ]);
    rig.ok(&["sh", "-c", "rm -f /run/copal/marker /mnt/boot/only-new; dd if=/dev/zero of=/mnt/boot/filler bs=64k; sync /mnt/boot"]);
    let before = boot(&rig);
    let run = ["env", "COPAL_TEST_DEVICE=1", "act", "--exact", test_name!(), "--nocapture"];
    let mounts = rig.ok(&["cat", "/proc/self/mountinfo"]);

    let log = stderr(&rig.run(&run));
    assert!(log.contains("RESULT error ") && log.contains("[boot-partition-full]"), "{log}");
    assert!(boot(&rig) == before, "{log}");

    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let record = format!(r#"{{"target":"B","kind":"health","boot_id":"{}"}}"#, boot.trim());
    rig.put("mnt/state/copal/rollback", &record);
    // Its new file needs a little room, which no overwriting gives.
    rig.ok(&["sh", "-c", "truncate -s -64K /mnt/boot/filler; sync /mnt/boot"]);
    let log = stderr(&rig.run(&run));
    assert!(log.contains("RESULT ok"), "{log}");
    assert!(log.contains("no space for a second copy of /mnt/boot/kernel; overwriting it"), "{log}");
    assert_new_files(&rig, Board::Uboot);
    assert_eq!(selected(&rig, Board::Uboot), ("3".into(), "1".into()));
    assert_eq!(rig.ok(&["cat", "/proc/self/mountinfo"]), mounts);
    assert!(!rig.has(&format!("{HOOKS}/look")), "they are not those of the running system");
}
