//! Updates between releases of which only one has copal.

use std::path::Path;

use crate::copal::{
    Board, HOOKS, PLACES, assert_as_before, assert_new_files, assert_pending, boot, breadcrumbs, ready,
    release_of, selected,
};
use crate::image::Release;
use crate::rig::{Rig, stderr, stdout};

fn file(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A shell file of a release of before copal: what is written from its documented behaviour, or itself, where
/// `COPAL_SHELL_RELEASE` names a folder with it.
fn shell_file(name: &str, stand_in: &str) -> String {
    match std::env::var_os("COPAL_SHELL_RELEASE") {
        Some(folder) => std::fs::read_to_string(Path::new(&folder).join(name)).unwrap(),
        None => file(stand_in),
    }
}

/// A release of before copal, with a hook for each thing that matters.
fn shell_release(rig: &Rig) -> Release {
    let release = Release::new();
    release.remove(&format!("{HOOKS}/a-hook"));
    let runner = shell_file("hostapp-update-hooks", "tests/hooks/stand-in.sh");
    release.put("usr/bin/hostapp-update-hooks", &runner);
    release.put("usr/bin/hostapp-update-hooks-v2", &runner);
    for name in ["find", "grep", "sort"] {
        std::os::unix::fs::symlink("busybox", release.root().join("bin").join(name)).unwrap();
    }
    let say = "#!/bin/sh\nset -e\necho \"${0##*/} $DURING_UPDATE\" >> /mnt/data/said\n";
    release.put(&format!("{HOOKS}/before/one"), say);
    release.put(&format!("{HOOKS}/after/two"), say);
    release.put(
        &format!("{HOOKS}/1-bootfiles"),
        format!("{say}echo shell > /mnt/boot/kernel\necho shell > /mnt/boot/only-shell\ncd /mnt/boot\nmd5sum kernel only-shell > balenaos.fingerprint\n"),
    );
    release.put(
        &format!("{HOOKS}/99-resin-uboot"),
        format!(
            "{say}printf 'resin_root_part=3\\nupgrade_available=1\\n' > /mnt/boot/resinOS_uEnv.txt\n! test -e /mnt/data/fail\n"
        ),
    );
    release.archive("registry/os:1", &rig.at("mnt/data/os.tar"));
    release
}

#[test]
fn copal_installs_a_release_without_copal() {
    let Some(rig) = ready("copal_installs_a_release_without_copal", Board::Uboot) else { return };
    shell_release(&rig);
    let before = boot(&rig);
    rig.put("mnt/data/fail", "");
    let all = "one 1\n1-bootfiles 1\n99-resin-uboot 1\n";
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert_eq!(rig.said(), all);
    let mut now = boot(&rig);
    // Its hooks leave what no release with copal knows of; all that the running system has is as it was.
    assert!(now.remove(Path::new("only-shell")).is_some());
    let mut all_else = before.clone();
    for files in [&mut now, &mut all_else] {
        files.remove(Path::new("balenaos.fingerprint")).unwrap();
    }
    assert!(now == all_else, "{}", stderr(&out));
    rig.ok(&["sh", "-c", "cd /mnt/boot && md5sum --quiet -c balenaos.fingerprint"]);
    rig.assert_back("a shell hook");
    assert!(!rig.has("mnt/state/copal/bootfiles"));

    // Nobody puts its boot files away: whose they are is known all the same.
    let out = rig.update(&["-x"]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    rig.assert_back("-x");
    assert!(rig.text("mnt/state/copal/bootfiles").contains("\"B\""));

    rig.ok(&["rm", "/mnt/data/fail"]);
    rig.put("mnt/data/said", "");
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(rig.said(), format!("{all}two 1\n"));
    assert_eq!(selected(&rig, Board::Uboot), ("3".into(), "1".into()));
    assert_eq!(breadcrumbs(&rig), 2);
    assert_eq!(rig.text("mnt/boot/kernel"), "shell\n");
    assert!(!rig.has("mnt/state/copal/bootfiles"));
}

#[test]
fn a_release_without_hooks_for_the_old_system_gets_its_own() {
    let Some(rig) = ready("a_release_without_hooks_for_the_old_system_gets_its_own", Board::Uboot) else {
        return;
    };
    let release = release_of(Board::Uboot);
    release.remove("usr/bin/hostapp-update-hooks-v2");
    release.archive("registry/os:1", &rig.at("mnt/data/os.tar"));
    rig.put("mnt/data/fail-after-fail", "");
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(rig.said(), "", "no hooks in the running system");
    assert_pending(&rig, Board::Uboot);
}

#[test]
fn an_updater_of_before_copal_installs_copal() {
    let Some(rig) = ready("an_updater_of_before_copal_installs_copal", Board::Uboot) else { return };
    rig.ok(&["rm", "/usr/bin/hostapp-update"]);
    rig.program("hostapp-update", &shell_file("hostapp-update", "tests/update/stand-in-update.sh"));
    // What the real one calls, and the rig has under other names.
    rig.program("balena", "#!/bin/sh\nexec docker \"$@\"\n");
    rig.program("awk", "#!/bin/sh\nexec busybox awk \"$@\"\n");
    let before = boot(&rig);
    for place in PLACES {
        let fail = format!("mnt/data/fail-{}", place.replace('/', "-"));
        rig.put(&fail, "");
        let out = rig.update(&[]);
        let said = stdout(&out) + &stderr(&out);
        assert_eq!(out.status.code(), Some(1), "{place}: {said}");
        assert!(said.contains(&format!("{} is broken", place.replace('/', "-"))), "{place}: {said}");
        // It has no marker, and nobody comes after the hooks.
        assert_as_before(&rig, Board::Uboot, &before, &format!("{place}: {}", stderr(&out)));
        rig.ok(&["rm", &format!("/{fail}")]);
    }
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(selected(&rig, Board::Uboot), ("3".into(), "1".into()));
    assert_eq!(breadcrumbs(&rig), 2);
    assert!(!rig.has("run/copal/marker") && !rig.has("mnt/state/copal/bootfiles"));
    assert_new_files(&rig, Board::Uboot);
    crate::layout::assert_slot(&rig, "5\n");
}

/// What such an updater does not know: a hook of the new release carries the owner's device trees, or ends the update.
#[test]
fn an_updater_of_before_copal_carries_device_trees_by_a_hook() {
    let Some(rig) = ready("an_updater_of_before_copal_carries_device_trees_by_a_hook", Board::Uboot) else {
        return;
    };
    rig.ok(&["rm", "/usr/bin/hostapp-update"]);
    rig.program("hostapp-update", &shell_file("hostapp-update", "tests/update/stand-in-update.sh"));
    rig.program("balena", "#!/bin/sh\nexec docker \"$@\"\n");
    rig.program("awk", "#!/bin/sh\nexec busybox awk \"$@\"\n");
    let release = release_of(Board::Uboot);
    release.put("etc/copal/update.conf", "DEVICE_TREE_REQUIRED=1\n");
    release.put("boot/pinned.dtb", "the release's");
    release.archive("registry/os:2", &rig.at("mnt/data/os.tar"));
    let running = "mnt/sysroot/active/current/boot";
    rig.put("mnt/boot/copal/keep", "pinned.dtb\n");
    rig.put(&format!("{running}/pinned.dtb"), "the owner's");
    rig.put("mnt/boot/extra_uEnv.txt", "custom_fdt_file=own.dtb\n");
    let before = boot(&rig);
    let out = rig.update(&[]);
    let said = stdout(&out) + &stderr(&out);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("[device-tree-missing]") && said.contains("own.dtb"), "{said}");
    assert_as_before(&rig, Board::Uboot, &before, &said);

    let own = crate::kit::device_tree::model("the owner's", 0);
    rig.put(&format!("{running}/own.dtb"), &own);
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(selected(&rig, Board::Uboot), ("3".into(), "1".into()));
    let new = |name| std::fs::read(rig.at(&format!("mnt/sysroot/inactive/current/boot/{name}"))).unwrap();
    assert_eq!((new("own.dtb"), new("pinned.dtb")), (own, b"the owner's".to_vec()));
}
