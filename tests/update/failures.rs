//! Whatever fails, the running system boots next, with its own boot files.

use std::fs::{self, File};

use crate::image::Release;
use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, stderr, until, wait};

#[test]
fn a_hook_that_fails_leaves_the_running_system_selected() {
    needs!(can_run);
    let rig = Rig::ready();
    for at in ["before", "forward", "flipped", "after"] {
        rig.put("mnt/data/said", "");
        rig.hook(at, "echo it is broken; exit 3\n");
        let out = rig.update(&[]);
        let log = stderr(&out);
        assert_eq!(out.status.code(), Some(1), "{at}: {log}");
        let last = log.lines().last().unwrap();
        assert!(last.contains("[hook-failed]") && last.contains("it is broken"), "{at}: {last}");
        assert!(last.contains("slot A, the running system, boots next"), "{at}: {last}");
        assert!(rig.said().ends_with("current 0\n"), "{at}: {}", rig.said());
        assert_eq!(rig.text("mnt/boot/kernel"), "old\n", "{at}");
        rig.assert_back(at);
        rig.no_hook(at);
    }
    // Nothing of all that is in the way of the next one.
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(rig.selected(), ("3".into(), "1".into()));
}

#[test]
fn a_rollback_on_request_skips_the_current_hooks() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.hook("after", "echo '[x][ERROR] cannot write x [boot-state-unwritable]; try y' >&2; exit 1\n");
    let out = rig.run(&["copal", "update", "-xf", "/mnt/data/os.tar"]);
    assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
    assert!(stderr(&out).ends_with("boots next [hook-failed]; try y\n"), "{}", stderr(&out));
    assert!(!rig.said().contains("current"), "{}", rig.said());
    rig.assert_back("-x");
}

#[test]
fn hooks_that_succeed_and_select_nothing_have_failed() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.hook("forward", "exit 0\n");
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(stderr(&out).contains("slot B is not selected"), "{}", stderr(&out));
    rig.assert_back("nothing selected");
}

/// The hooks have written the new root into the file, and U-Boot does not read it: or the root, and not the trial.
#[test]
fn a_selection_that_the_bootloader_does_not_read_fails_the_update() {
    needs!(can_run);
    let rig = Rig::ready();
    for (line, text) in [
        ("=x", "=x\\nresin_root_part=3\\nupgrade_available=1"),
        ("between", "resin_root_part=3\\n=x\\nupgrade_available=1"),
        ("deleted", "resin_root_part=3\\nupgrade_available=1\\nresin_root_part"),
    ] {
        rig.put("mnt/data/said", "");
        rig.hook("after", &format!("printf '{text}\\n' > /mnt/boot/resinOS_uEnv.txt\n"));
        let out = rig.update(&[]);
        let log = stderr(&out);
        assert_eq!(out.status.code(), Some(1), "{line}: {log}");
        let last = log.lines().last().unwrap();
        assert!(
            last.contains("[hook-failed]") && last.contains("resinOS_uEnv.txt is damaged"),
            "{line}: {last}"
        );
        assert!(last.contains("slot A, the running system, boots next"), "{line}: {last}");
        rig.assert_back(line);
        rig.no_hook("after");
    }
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(rig.selected(), ("3".into(), "1".into()));
}

/// Until the running system is selected, a power cut would lead to the slot that the update erases.
#[test]
fn a_selection_that_the_bootloader_does_not_read_is_repaired_before_the_slot_is_erased() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.put("mnt/boot/resinOS_uEnv.txt", "=x\nresin_root_part=3\nupgrade_available=1\n");
    rig.hook("before", "cat /mnt/boot/resinOS_uEnv.txt >> /mnt/data/found\n");
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(rig.text("mnt/data/found"), "resin_root_part=2\nupgrade_available=0\n");
    assert_eq!(rig.selected(), ("3".into(), "1".into()));
}

#[test]
fn a_release_that_cannot_boot_is_not_selected() {
    needs!(can_run);
    let rig = Rig::ready();
    let other = Release::new();
    other.remove("boot/init");
    other.put("boot/something", "");
    other.archive("registry/os:2", &rig.at("mnt/data/os.tar"));
    // What a registry has is seen when it is in the slot.
    let (mut registry, name) = rig.registry();
    for (source, what) in [("-f", "/mnt/data/os.tar"), ("-i", &name)] {
        let out = rig.run(&["hostapp-update", source, what]);
        assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
        assert!(stderr(&out).contains("it has no /boot/init [image-not-host-os]"), "{}", stderr(&out));
        assert_eq!(rig.said(), "");
        rig.assert_back("no init");
    }
    drop(registry.kill());
    drop(registry.wait());
}

#[test]
fn a_slot_that_fills_up_is_the_engines_own_error() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.ok(&["sh", "-c", "! dd if=/dev/zero of=/mnt/sysroot/inactive/lost+found/mine bs=1M 2>/dev/null"]);
    let out = rig.run(&["copal", "update", "-f", "/mnt/data/os.tar"]);
    assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
    assert!(stderr(&out).contains("[slot-full]"), "{}", stderr(&out));
    assert!(rig.has("mnt/sysroot/inactive/lost+found/mine"), "it is nobody's but its owner's");
    rig.assert_back("full");
    rig.ok(&["rm", "/mnt/sysroot/inactive/lost+found/mine"]);
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
}

#[test]
fn a_counter_that_cannot_be_written_undoes_the_update() {
    needs!(can_run);
    let rig = Rig::ready();
    let full = "ln -s /dev/full /mnt/sysroot/inactive/counter.new\n";
    let folder = "rm /mnt/sysroot/inactive/counter && mkdir -p /mnt/sysroot/inactive/counter/taken\n";
    for (why, code, hook) in [("full", "slot-full", full), ("a folder", "update-failed", folder)] {
        rig.put("mnt/data/said", "");
        rig.put("mnt/sysroot/inactive/counter", "3\n");
        // When all hooks have succeeded, and the slot is selected.
        rig.hook("after", hook);
        let out = rig.update(&[]);
        let log = stderr(&out);
        assert_eq!(out.status.code(), Some(1), "{why}: {log}");
        let last = log.lines().last().unwrap();
        assert!(
            last.contains(&format!("[{code}]")) && last.contains("/mnt/sysroot/inactive/counter"),
            "{why}: {last}"
        );
        assert!(last.contains("slot A, the running system, boots next"), "{why}: {last}");
        assert_eq!(rig.said(), "before 1\nforward 1\nafter 1\ncurrent 0\n", "{why}");
        assert_eq!(rig.text("mnt/boot/kernel"), "old\n", "{why}");
        rig.assert_back(why);
        rig.no_hook("after");
        rig.ok(&["sh", "-c", "rm -r /mnt/sysroot/inactive/counter*"]);
    }
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(rig.text("mnt/sysroot/inactive/counter"), "5\n");
}

#[test]
fn an_archive_is_unpacked_on_the_data_partition() {
    needs!(can_run);
    let rig = Rig::ready();
    // Room in the slot for the release once, not for its archive beside it.
    let large = Release::new();
    let mut noise = vec![0; 60 << 20];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    large.put("usr/share/large", noise);
    large.archive("registry/os:2", &rig.at("mnt/data/os.tar"));
    rig.ok(&["fallocate", "-l", "80M", "/mnt/sysroot/inactive/lost+found/mine"]);
    let refuse = "mkdir -p /mnt/data/resin-data && touch /mnt/data/resin-data/tmp";
    rig.ok(&["sh", "-c", refuse]);
    let out = rig.run(&["copal", "update", "-f", "/mnt/data/os.tar"]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(4), "without the folder there is too little room: {log}");
    assert!(log.contains("unpacking in the slot"), "{log}");
    assert!(log.lines().last().unwrap().contains("[slot-full]"), "{log}");
    rig.assert_back("no folder");

    rig.ok(&["rm", "/mnt/data/resin-data/tmp"]);
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(!rig.has("mnt/data/resin-data/tmp"));
    rig.assert_tidy("unpacked");
}

#[test]
fn a_selection_that_cannot_be_restored_is_reported_loudly() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.hook("after", "mount -o remount,ro /mnt/boot; exit 1\n");
    let out = rig.update(&[]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(1), "{log}");
    let last = log.lines().last().unwrap();
    assert!(last.contains("COULD NOT BE SELECTED AGAIN") && last.contains("slot B"), "{last}");
    assert!(last.contains("do not restart the device"), "{last}");
    // Whoever comes next must find what happened; and boot files of A beside a selected B help nobody.
    assert!(rig.has("mnt/state/rollback-health-breadcrumb") && rig.has("run/copal/marker"));
    assert!(!rig.said().contains("current"), "{}", rig.said());
    rig.no_hook("after");
    let out = rig.update(&[]);
    assert_ne!(out.status.code(), Some(0), "a boot partition that cannot be written to");
    rig.ok(&["mount", "-o", "remount,rw", "/mnt/boot"]);
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(rig.said().contains("current 0"), "the earlier one is undone first: {}", rig.said());
}

#[test]
fn hooks_of_the_running_system_that_fail_are_reported_and_stop_nothing() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.program("hostapp-update-hooks", "#!/bin/sh\necho current >> /mnt/data/said; exit 7\n");
    rig.hook("after", "exit 1\n");
    let out = rig.update(&[]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(1), "{log}");
    assert!(log.contains("ended with status 7"), "{log}");
    assert!(rig.said().ends_with("current\n"), "{}", rig.said());
    rig.assert_back("broken hooks");
}

#[test]
fn hooks_that_go_on_without_their_engine_are_ended_before_the_update_is_undone() {
    needs!(can_run);
    let mut rig = Rig::ready();
    rig.hook("forward", "touch /run/held; while [ -e /run/held ]; do sleep 0.05; done\n");
    let log = rig.dir.path().join("update.log");
    let mut command = rig.command(&["hostapp-update", "-f", "/mnt/data/os.tar"]);
    let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
    let said = || fs::read_to_string(&log).unwrap();
    until("the hooks", || rig.has("run/held"));
    rig.crash_engine();
    until("the way back", || said().contains("selecting the running system again"));
    fs::remove_file(rig.at("run/held")).unwrap();
    until("the end of the hooks", || rig.selected().0 == "3");
    rig.engine();
    let out = wait(child);
    let log = said();
    assert_eq!(out.status.code(), Some(1), "{log}");
    let last = log.lines().last().unwrap();
    assert!(last.contains("[engine-unreachable]") && !last.contains("may still run"), "{last}");
    assert!(last.contains("slot A, the running system, boots next"), "{last}");
    assert_eq!(rig.text("mnt/boot/kernel"), "old\n", "{log}");
    assert_eq!(rig.selected(), ("2".into(), "0".into()), "{log}");
    assert!(!rig.has("mnt/state/rollback-health-breadcrumb") && !rig.has("run/copal/marker"), "{log}");
}
