//! Two at once, and updates that are ended on their way.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Child;

use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, stderr, stdout, until, wait};

/// An update that waits in a hook until the test lets it go on.
fn held(rig: &Rig, at: &str) -> Child {
    rig.hook(at, "touch /run/held; while [ -e /run/held ]; do sleep 0.05; done\n");
    let child = rig.start(&["hostapp-update", "-f", "/mnt/data/os.tar"]);
    until("the hook", || rig.has("run/held"));
    child
}

fn let_go(rig: &Rig) {
    std::fs::remove_file(rig.at("run/held")).unwrap();
}

/// The update's number, as the device sees it.
fn pid(rig: &Rig) -> String {
    let lock: serde_json::Value = serde_json::from_str(&rig.text("run/copal/update.lock")).unwrap();
    lock["pid"].to_string()
}

#[test]
fn a_second_one_learns_which_process_is_at_work() {
    needs!(can_run);
    let rig = Rig::ready();
    // What a hook leaves running must not hold the lock.
    rig.hook("after", "sleep 300 > /dev/null 2>&1 &\n");
    let first = held(&rig, "before");
    let out = rig.run(&["copal", "update", "-f", "/mnt/data/os.tar"]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(5), "{log}");
    assert!(
        log.contains(&format!("hostapp-update (process {}) has been updating since 20", pid(&rig))),
        "{log}"
    );
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert_eq!(rig.said(), "before 1\n", "nobody else did anything");
    let_go(&rig);
    let out = wait(first);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    rig.no_hook("before");
    rig.no_hook("after");
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
}

#[test]
fn a_signal_is_obeyed_when_the_step_is_done() {
    needs!(can_run);
    let rig = Rig::ready();
    for (signal, at) in [("TERM", "before"), ("INT", "after")] {
        rig.put("mnt/data/said", "");
        let child = held(&rig, at);
        rig.ok(&["kill", &format!("-{signal}"), &pid(&rig)]);
        std::thread::sleep(std::time::Duration::from_millis(200));
        let_go(&rig);
        let out = wait(child);
        let log = stderr(&out);
        assert_eq!(out.status.code(), Some(1), "{log}");
        assert!(log.lines().last().unwrap().contains("[interrupted]"), "{log}");
        assert!(rig.said().ends_with(&format!("{at} 1\ncurrent 0\n")), "{}", rig.said());
        rig.assert_back(signal);
        rig.no_hook(at);
    }
}

/// When the slot is selected, and nobody has been told of it yet.
#[test]
fn a_signal_that_comes_too_late_ends_the_wait_for_the_reboot_only() {
    needs!(can_run);
    let rig = Rig::ready();
    // The history is written last, and waited for a few seconds.
    rig.hook("after", "fsfreeze -f /mnt/state\n");
    let child = rig.start(&["copal", "update", "--json", "-rf", "/mnt/data/os.tar"]);
    let counter = || std::fs::read_to_string(rig.at("mnt/sysroot/inactive/counter")).unwrap_or_default();
    until("the counter", || counter() == "5\n");
    rig.ok(&["kill", "-TERM", &pid(&rig)]);
    std::thread::sleep(std::time::Duration::from_millis(200));
    rig.ok(&["fsfreeze", "-u", "/mnt/state"]);
    let out = wait(child);
    let last = stdout(&out).lines().last().unwrap_or_default().to_owned();
    let result: serde_json::Value = serde_json::from_str(&last).unwrap_or_default();
    assert_eq!(
        (&result["ok"], &result["update"]["slot"]),
        (&true.into(), &"B".into()),
        "{last}{}",
        stderr(&out)
    );
    assert_eq!(out.status.signal(), Some(15), "the reboot is called off");
    assert!(!rig.has_ended());
    assert_eq!(rig.selected(), ("3".into(), "1".into()));
}

#[test]
fn a_lost_terminal_ends_nothing() {
    needs!(can_run);
    let rig = Rig::ready();
    let mut child = held(&rig, "before");
    drop((child.stdout.take(), child.stderr.take()));
    rig.ok(&["kill", "-HUP", &pid(&rig)]);
    let_go(&rig);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(rig.selected(), ("3".into(), "1".into()));
}

#[test]
fn one_that_was_killed_is_undone_by_the_next() {
    needs!(can_run);
    let rig = Rig::ready();
    for at in ["before", "flipped", "after"] {
        let mut child = held(&rig, at);
        rig.ok(&["kill", "-KILL", &pid(&rig)]);
        drop(child.wait());
        rig.no_hook(at);
        let_go(&rig);
        rig.put("mnt/data/said", "");
        let out = rig.update(&[]);
        assert_eq!(out.status.code(), Some(0), "{at}: {}", stderr(&out));
        let said = rig.said();
        assert!(
            said.starts_with("current 0\n") && said.ends_with("before 1\nforward 1\nafter 1\n"),
            "{at}: {said}"
        );
        assert_eq!(rig.selected(), ("3".into(), "1".into()));
        rig.assert_tidy(at);
    }
}

#[test]
fn who_asks_for_it_gets_a_reboot_into_the_new_system() {
    needs!(can_run);
    let rig = Rig::ready();
    // reboot(2) ends the namespace of the device, and everything in it.
    let out = rig.update(&["-r"]);
    until("the reboot", || rig.has_ended());
    let log = stdout(&out);
    assert!(log.contains("is installed; slot B boots next"), "{log}{}", stderr(&out));
    assert!(rig.boot_file("/resinOS_uEnv.txt").contains("resin_root_part=3"), "{log}");

    let rig = Rig::ready();
    rig.hook("after", "exit 1\n");
    let out = rig.update(&["-r"]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(!rig.has_ended(), "a failed update restarts nothing");
}
