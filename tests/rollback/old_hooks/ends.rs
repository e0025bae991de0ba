//! Ended in the middle, and run again.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use super::rig::{self, MERGED, Rig, stderr, until, wait};
use crate::kit::needs::{can_run, needs};

#[test]
fn a_signal_is_obeyed_when_all_is_undone() {
    // In a rig, this is the program of the device.
    if rig::is_device() {
        return rig::act();
    }
    needs!(can_run);
    let rig = Rig::new();
    for signal in ["TERM", "INT", "HUP"] {
        let child = rig.held();
        rig.ok(&["kill", &format!("-{signal}"), &rig.pid()]);
        std::thread::sleep(Duration::from_millis(200));
        assert!(rig.has("mnt/data/held"), "the hooks go on");
        rig.let_go();
        let log = stderr(&wait(child));
        assert!(log.contains("old system: let go\n") && log.contains("old system: has run\n"), "{log}");
        assert!(!log.contains("RESULT"), "{log}");
        rig.assert_tidy(signal);
        rig.assert_unused(signal);
        rig.hook("");
        rig.assert_tidy(&rig.succeeds());
    }
}

#[test]
fn a_kill_leaves_nothing_and_the_next_run_succeeds() {
    needs!(can_run);
    let rig = Rig::new();
    let child = rig.held();
    rig.ok(&["kill", "-KILL", &rig.pid()]);
    drop(wait(child));
    rig.assert_tidy("killed");
    // The runner is asked to end, too, and its mounts go with it.
    rig.assert_unused("killed");
    rig.hook("");
    let log = rig.succeeds();
    rig.assert_tidy(&log);
}

/// Hooks that are in the middle of something finish it before the next ones begin.
#[test]
fn the_next_run_waits_for_hooks_of_a_killed_one() {
    needs!(can_run);
    let rig = Rig::new();
    rig.hook("trap '' TERM; touch /mnt/data/held; while [ -e /mnt/data/held ]; do sleep 0.05; done; touch /mnt/data/done");
    let child = rig.program().spawn().unwrap();
    until("the hook", || rig.has("mnt/data/held"));
    rig.ok(&["kill", "-KILL", &rig.pid()]);
    drop(wait(child));
    rig.assert_tidy("killed");
    rig.hook("test -e /mnt/data/done");
    let mut next = rig.program().spawn().unwrap();
    let mut log = String::new();
    let mut said = BufReader::new(next.stderr.take().unwrap());
    // It says so when it begins to wait, however long the way there is on a busy machine.
    while !log.contains("[WARN] the old system is used by ") {
        assert!(said.read_line(&mut log).unwrap() > 0, "it did not wait: {log}");
    }
    rig.let_go();
    said.read_to_string(&mut log).unwrap();
    drop(wait(next));
    assert!(log.contains("RESULT ok"), "{log}");
    assert_eq!(log.matches("running the hooks").count(), 1, "{log}");
    rig.assert_tidy(&log);
    rig.assert_unused(&log);
}

/// Wherever it is killed.
#[test]
fn kills_at_any_time() {
    needs!(can_run);
    let rig = Rig::new();
    rig.hook("sleep 0.1");
    let mut killed = 0;
    for ms in (0..400).step_by(10) {
        let child = rig.program().spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        if rig.run(&["pkill", "-KILL", "-x", "act"]).status.success() {
            killed += 1;
        }
        let log = stderr(&wait(child));
        rig.assert_tidy(&format!("after {ms} ms: {log}"));
    }
    assert!(killed > 3, "{killed}");
    rig.assert_unused("killed");
    let log = rig.succeeds();
    rig.assert_tidy(&log);
}

/// An old root that other programs have left mounted.
#[test]
fn what_others_left_mounted_is_undone() {
    needs!(can_run);
    let rig = Rig::new();
    let script = format!(
        "set -e; /mnt/sysroot/active/current/boot/init -sysroot /mnt/sysroot/inactive
         mount --bind /dev {MERGED}/dev; mount --bind /mnt/boot {MERGED}/mnt/boot"
    );
    rig.ok(&["sh", "-c", &script]);
    assert!(rig.mounts().contains(MERGED));
    let log = rig.succeeds();
    assert!(
        log.contains(&format!("[WARN] {MERGED} is still mounted from an earlier run; unmounting it")),
        "{log}"
    );
    rig.assert_tidy(&log);
    rig.assert_unused(&log);
}

/// The script has the running root in there again, and what is unmounted in one view of it is unmounted in both.
#[test]
fn the_running_system_is_not_unmounted_with_it() {
    needs!(can_run);
    let rig = Rig::new();
    rig.put("mnt/sysroot/active/of-this", "");
    let sysroot = format!("{MERGED}/mnt/sysroot");
    let script = format!(
        "set -e; /mnt/sysroot/active/current/boot/init -sysroot /mnt/sysroot/inactive
         mount --bind /mnt/sysroot {sysroot}
         mount --bind /mnt/sysroot/active {sysroot}/active
         umount /mnt/sysroot/active"
    );
    rig.ok(&["sh", "-c", &script]);
    assert!(rig.mounts().contains(&format!("{sysroot}/active ")), "{}", rig.mounts());
    let log = rig.succeeds();
    assert!(rig.has("mnt/sysroot/active/of-this"), "{log}");
    assert_eq!(rig.mounts().matches(MERGED).count(), 0, "{log}");
}
