//! Old systems that cannot be mounted, or whose hooks fail: nothing stays behind.

use std::fs;
use std::os::unix::fs::symlink;

use super::rig::{Rig, executable, stderr, wait};
use crate::kit::needs::{can_run, needs};

/// Nothing was run, and nothing is left.
fn assert_refused(rig: &Rig, why: &str) {
    let log = rig.fails();
    assert!(log.contains("RESULT error Refused cannot run the hooks of the old system: "), "{log}");
    assert!(log.contains(why) && log.contains("[hook-failed]"), "{why}: {log}");
    assert!(!rig.has("mnt/state/seen-env"), "{why}: {log}");
    rig.assert_tidy(&log);
    rig.assert_unused(&log);
}

#[test]
fn every_mount_point_that_hooks_need_may_be_missing() {
    needs!(can_run);
    let rig = Rig::new();
    for point in ["dev", "run", "proc", "sys", "mnt/boot", "mnt/state", "mnt/data", "mnt/sysroot"] {
        let (place, aside) = (rig.old(point), rig.old("aside"));
        fs::rename(&place, &aside).unwrap();
        assert_refused(&rig, &format!("cannot mount /{point} in the old system: No such file"));
        // A link would lead out of the old root.
        symlink("/mnt", &place).unwrap();
        assert_refused(&rig, &format!("cannot mount /{point} in the old system: it is not a folder"));
        fs::remove_file(&place).unwrap();
        fs::rename(&aside, &place).unwrap();
    }
    rig.succeeds();
}

#[test]
fn scratch_space_is_not_needed() {
    needs!(can_run);
    let rig = Rig::new();
    fs::remove_dir(rig.old("var/cache")).unwrap();
    fs::remove_dir(rig.old("tmp")).unwrap();
    let log = rig.succeeds();
    for folder in ["/tmp", "/var/cache"] {
        assert!(
            log.contains(&format!("[WARN] running the hooks of the old system without {folder}: ")),
            "{log}"
        );
    }
    rig.assert_tidy(&log);
}

#[test]
fn a_place_of_this_system_may_be_missing() {
    needs!(can_run);
    let mut rig = Rig::new();
    rig.ok(&["sh", "-c", "umount /mnt/boot && rmdir /mnt/boot"]);
    rig.remember();
    assert_refused(&rig, "cannot read /mnt/boot: No such file");
}

#[test]
fn the_old_root_may_not_be_to_be_mounted() {
    needs!(can_run);
    let rig = Rig::new();
    let init = rig.at("mnt/sysroot/active/current/boot/init");
    let good = fs::read_to_string(&init).unwrap();
    for (text, why) in [
        ("#!/bin/sh\necho no hostapp >&2; exit 1\n", "it ended with status 1, after it said: no hostapp"),
        ("#!/bin/sh\necho /\n", "init printed \"/\""),
        ("#!/bin/sh\necho /nowhere\n", "init printed \"/nowhere\""),
        ("#!/bin/sh\necho tmp\n", "init printed \"tmp\""),
        ("#!/bin/sh\n", "init printed \"\""),
        // It has mounted something all the same.
        ("#!/bin/sh\nmount -t tmpfs tmpfs /mnt/data\nexit 9\n", "it ended with status 9"),
        ("#!/no/shell\n", "cannot mount the old system: No such file"),
    ] {
        executable(&init, text);
        assert_refused(&rig, why);
    }
    executable(&init, &good);
    rig.succeeds();
}

#[test]
fn a_runner_that_cannot_run_or_fails() {
    needs!(can_run);
    let rig = Rig::new();
    let runner = rig.old("usr/bin/hostapp-update-hooks");
    fs::rename(&runner, rig.old("aside")).unwrap();
    assert_refused(&rig, "");
    executable(&runner, "#!/no/shell\n");
    assert_refused(&rig, "No such file or directory");
    fs::rename(rig.old("aside"), &runner).unwrap();

    for (hook, why) in [
        ("echo it is broken; exit 3", "it ended with status 3, after it said: it is broken"),
        ("kill -KILL $$", "it was ended by SIGKILL"),
    ] {
        rig.hook(hook);
        let log = rig.fails();
        let error = format!("RESULT error Written the hooks of the old system failed: {why}");
        assert!(log.contains(&error), "{log}");
        rig.assert_tidy(&log);
        rig.assert_unused(&log);
    }
}

#[test]
fn hooks_that_do_not_end_are_ended() {
    needs!(can_run);
    let rig = Rig::new();
    rig.hook("sleep 1000");
    let mut program = rig.program();
    program.env("LIMIT_MS", "500");
    let log = stderr(&wait(program.spawn().unwrap()));
    assert!(log.contains("RESULT error Written") && log.contains("having taken longer than 0.5 s"), "{log}");
    rig.assert_tidy(&log);
    rig.assert_unused(&log);
}

/// What hooks mount stays among them, and goes with them.
#[test]
fn mounts_of_hooks_are_undone_too() {
    needs!(can_run);
    let rig = Rig::new();
    rig.hook(
        "for at in /mnt/boot /mnt/data /run /tmp /mnt/sysroot/inactive; do mkdir -p $at/own; mount -t tmpfs own $at/own; done; exit 1",
    );
    let log = rig.fails();
    rig.assert_tidy(&log);
    rig.assert_unused(&log);
}

/// A program that outlives them keeps none of it in sight, and nobody waits for it.
#[test]
fn what_hooks_leave_running_holds_nothing() {
    needs!(can_run);
    let rig = Rig::new();
    rig.hook("sleep 999 > /mnt/boot/log 2>&1 & sleep 999 &");
    let log = rig.succeeds();
    rig.assert_tidy(&log);
    assert_eq!(rig.ok(&["pgrep", "-xfc", "sleep 999"]).trim(), "2");
    let own = rig.ok(&["sh", "-c", "for p in $(pgrep -xf 'sleep 999'); do cat /proc/$p/mountinfo; done"]);
    assert!(!own.contains(" /mnt/boot "), "{own}");
}
