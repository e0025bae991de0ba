//! Updates where something is missing that most devices have.

use std::fs;

use crate::copal::{
    Board, HOOKS, assert_as_before, assert_pending, boot, breadcrumbs, program, ready, release_of,
};
use crate::kit::old_kernel::{CONTROL, REFUSED, SCRIPT};
use crate::layout::assert_slot;
use crate::rig::{RUNC, Rig, stderr};

/// Runs it as on the oldest kernel.
fn old(rig: &Rig, argv: &[&str]) -> std::process::Output {
    rig.run(&[&["python3", "/run/old_kernel.py"], argv].concat())
}

#[test]
fn on_the_oldest_kernel() {
    let Some(rig) = ready("on_the_oldest_kernel", Board::Uboot) else { return };
    rig.put("run/old_kernel.py", SCRIPT);
    rig.put("run/control.py", CONTROL);
    let out = old(&rig, &["python3", "/run/control.py"]);
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), REFUSED, "{}", stderr(&out));
    rig.ok(&["rm", "/usr/bin/copal"]);
    fs::copy(program(), rig.at("usr/bin/copal")).unwrap();
    // Hooks that run in the new system, too.
    rig.program("runc-here", &RUNC.replace("exec runc", "exec python3 /run/old_kernel.py runc"));
    let release = release_of(Board::Uboot);
    for hook in ["before/0-kernel", "0-kernel"] {
        release.put(
            &format!("{HOOKS}/{hook}"),
            "#!/bin/sh\n/bin/busybox uname -r | sed 's/^2[.]6[.].*/old/' >> /mnt/data/said\n",
        );
    }
    std::os::unix::fs::symlink("busybox", release.root().join("bin/sed")).unwrap();
    release.archive("registry/os:2", &rig.at("mnt/data/os.tar"));

    let before = boot(&rig);
    rig.put("mnt/data/fail-after-fail", "");
    let out = old(&rig, &["hostapp-update", "-f", "/mnt/data/os.tar"]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(stderr(&out).contains("after-fail is broken"), "{}", stderr(&out));
    assert_eq!(rig.said().matches("old\n").count(), 3, "two hooks, and the kernel file: {}", rig.said());
    assert_as_before(&rig, Board::Uboot, &before, &stderr(&out));
    rig.ok(&["rm", "/mnt/data/fail-after-fail"]);

    let out = old(&rig, &["hostapp-update", "-f", "/mnt/data/os.tar"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "5\n");
    assert_pending(&rig, Board::Uboot);
    for (argv, code) in [
        (&["copal", "status", "--json"][..], 0),
        (&["copal", "hooks", "--list"], 0),
        (&["rollback-clear-bootcount"], 0),
        (&["rollback-stop", "--force"], 0),
    ] {
        let argv = if argv[0] == "copal" { argv.to_vec() } else { [&["copal"], argv].concat() };
        let out = old(&rig, &argv);
        assert_eq!(out.status.code(), Some(code), "{argv:?}: {}", stderr(&out));
    }
    assert_eq!(breadcrumbs(&rig), 0, "the trial was ended");
}

/// As balenaOS mounts it: `/` and `/usr` take no writes, and neither does anything of the system that is not a partition for data.
#[test]
fn from_a_root_that_is_read_only() {
    let Some(rig) = ready("from_a_root_that_is_read_only", Board::Grub) else { return };
    // The mount, and not its file system: newer releases of mount cannot do that to an overlay.
    for point in ["/usr", "/mnt/sysroot/active", "/"] {
        rig.ok(&["mount", "-o", "remount,bind,ro", point]);
    }
    for folder in ["", "/etc", "/usr/bin", "/root", "/mnt", "/mnt/sysroot", "/mnt/sysroot/active"] {
        assert!(!rig.run(&["touch", &format!("{folder}/x")]).status.success(), "{folder} takes writes");
    }
    let before = boot(&rig);
    let update = || rig.run(&["env", "-u", "HOME", "hostapp-update", "-f", "/mnt/data/os.tar"]);
    for place in ["90-fail", "after/fail"] {
        let fail = format!("/mnt/data/fail-{}", place.replace('/', "-"));
        rig.put(fail.trim_start_matches('/'), "");
        let out = update();
        assert_eq!(out.status.code(), Some(1), "{place}: {}", stderr(&out));
        assert!(stderr(&out).contains("is broken"), "{place}: {}", stderr(&out));
        assert_as_before(&rig, Board::Grub, &before, &format!("{place}: {}", stderr(&out)));
        rig.ok(&["rm", &fail]);
    }
    let out = update();
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(0), "{log}");
    // A program whose coverage is measured has a complaint of its own.
    let complaints = log.lines().filter(|l| l.to_lowercase().contains("read-only"));
    assert_eq!(complaints.filter(|l| !l.contains("LLVM Profile Error")).count(), 0, "{log}");
    assert_slot(&rig, "5\n");
    assert_pending(&rig, Board::Grub);
    // From pending: the earlier one is undone first.
    let out = update();
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_pending(&rig, Board::Grub);
}

/// A pipe, a folder and a link where records of an update belong.
#[test]
fn with_something_else_in_the_place_of_its_records() {
    let Some(rig) = ready("with_something_else_in_the_place_of_its_records", Board::Uboot) else { return };
    rig.ok(&["mkdir", "-p", "/mnt/state/copal/rollback/below"]);
    rig.ok(&["mkfifo", "/mnt/state/copal/bootfiles"]);
    rig.ok(&["ln", "-s", "/mnt/state/os-release", "/mnt/state/copal/trial"]);
    let status = rig.run(&["copal", "status"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    for name in ["rollback", "bootfiles", "trial"] {
        let line = text.lines().find(|l| l.contains(&format!("copal/{name} is not a regular file")));
        assert!(line.is_some_and(|l| l.ends_with("the next update removes it")), "{name}: {text}");
    }
    let out = rig.run(&["hostapp-update", "-f", "/mnt/data/os.tar"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "5\n");
    assert_pending(&rig, Board::Uboot);
    assert!(!String::from_utf8_lossy(&rig.run(&["copal", "status"]).stdout).contains("problem"));
}
