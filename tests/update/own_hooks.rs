//! Updates between two releases with copal, whose hooks are the built-in ones.

use crate::copal::{Board, PLACES, assert_as_before, assert_pending, boot, breadcrumbs, ready, selected};
use crate::layout::assert_slot;
use crate::rig::{Rig, stderr};

fn fail_at(rig: &Rig, place: &str) -> String {
    let file = format!("/mnt/data/fail-{}", place.replace('/', "-"));
    rig.put(file.trim_start_matches('/'), "");
    file
}

/// Where there is neither systemd nor D-Bus.
#[test]
fn copal_installs_copal_and_once_more_from_pending() {
    let Some(rig) = ready("copal_installs_copal_and_once_more_from_pending", Board::Uboot) else { return };
    assert!(!rig.has("run/systemd") && !rig.has("run/dbus") && !rig.has("var/run/dbus"));
    let update = ["copal", "update", "-f", "/mnt/data/os.tar"];
    let out = rig.run(&update);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(0), "{log}");
    assert_slot(&rig, "5\n");
    assert_pending(&rig, Board::Uboot);
    assert!(rig.has("run/copal/marker"));
    assert!(!log.contains("D-Bus") && !log.contains("systemd"), "{log}");
    let slot = "mnt/sysroot/inactive";
    let before = "old\nresin_root_part=2\nupgrade_available=0\n";
    assert_eq!(rig.said(), before);

    // The release on trial goes, and with it its boot files: first of all nothing selects it any more.
    let first = rig.link(&format!("{slot}/current"));
    let out = rig.run(&update);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_ne!(rig.link(&format!("{slot}/current")), first);
    assert_eq!(rig.said(), before.repeat(2), "the hooks of the second one find the running system's files");
    assert_slot(&rig, "5\n");
    assert_pending(&rig, Board::Uboot);
}

#[test]
fn copal_installs_copal_from_a_registry() {
    let Some(rig) = ready("copal_installs_copal_from_a_registry", Board::Uboot) else { return };
    let (mut registry, name) = rig.registry();
    let out = rig.run(&["hostapp-update", "-i", &name]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "5\n");
    assert_pending(&rig, Board::Uboot);
    drop(registry.kill());
    drop(registry.wait());
}

/// Installed, failed after the switch, and installed again.
fn other_bootloader(test: &str, board: Board) {
    let Some(rig) = ready(test, board) else { return };
    let before = boot(&rig);
    let fail = fail_at(&rig, "999-fail");
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert_as_before(&rig, board, &before, &stderr(&out));
    rig.ok(&["rm", &fail]);
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "5\n");
    assert_pending(&rig, board);
}

#[test]
fn grub_on_uefi_is_recognised() {
    other_bootloader("grub_on_uefi_is_recognised", Board::Grub);
}

#[test]
fn the_balena_bootloader_is_recognised() {
    other_bootloader("the_balena_bootloader_is_recognised", Board::Balena);
}

#[test]
fn a_boards_hook_that_fails_costs_nothing_but_the_update() {
    let Some(rig) = ready("a_boards_hook_that_fails_costs_nothing_but_the_update", Board::Uboot) else {
        return;
    };
    let before = boot(&rig);
    for place in PLACES {
        let fail = fail_at(&rig, place);
        let out = rig.update(&[]);
        let log = stderr(&out);
        assert_eq!(out.status.code(), Some(1), "{place}: {log}");
        let last = log.lines().last().unwrap();
        assert!(last.contains("slot A, the running system, boots next"), "{place}: {log}");
        assert_as_before(&rig, Board::Uboot, &before, &format!("{place}: {log}"));
        rig.ok(&["rm", &fail]);
    }

    // Nobody puts the boot files back; who comes next finds whose they are, and does.
    for place in ["90-fail", "999-fail"] {
        let fail = fail_at(&rig, place);
        let out = rig.update(&["-x"]);
        assert_eq!(out.status.code(), Some(1), "{place}: {}", stderr(&out));
        assert_eq!(selected(&rig, Board::Uboot), ("2".into(), "0".into()), "{place}");
        assert_eq!(breadcrumbs(&rig), 0, "{place}");
        assert!(rig.text("mnt/boot/kernel").ends_with("new\n"), "{place}");
        let record = rig.text("mnt/state/copal/bootfiles");
        assert!(record.contains("\"B\""), "{place}: {record}");
        rig.ok(&["rm", &fail]);
        let fail = fail_at(&rig, "0-fail");
        rig.put("mnt/data/said", "");
        let out = rig.update(&[]);
        assert_eq!(out.status.code(), Some(1), "{place}: {}", stderr(&out));
        assert!(rig.said().starts_with("old\n"), "{place}: put back before the slot is erased");
        assert_as_before(&rig, Board::Uboot, &before, &format!("after -x, {place}"));
        rig.ok(&["rm", &fail]);
    }
}

#[test]
fn a_running_system_without_a_runner_is_put_back_all_the_same() {
    let Some(rig) = ready("a_running_system_without_a_runner_is_put_back_all_the_same", Board::Uboot) else {
        return;
    };
    rig.ok(&["rm", "/usr/bin/hostapp-update-hooks"]);
    rig.put(
        "etc/hostapp-update-hooks.d/50-board",
        "#!/bin/sh\necho \"board $DURING_UPDATE\" >> /mnt/data/said\n",
    );
    rig.ok(&["chmod", "755", "/etc/hostapp-update-hooks.d/50-board"]);
    let before = boot(&rig);
    let fail = fail_at(&rig, "999-fail");
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(rig.said().ends_with("board 0\n"), "{}", rig.said());
    assert_as_before(&rig, Board::Uboot, &before, &stderr(&out));

    // Without hooks at all, the boot files are what counts.
    rig.ok(&["rm", "-r", "/etc/hostapp-update-hooks.d"]);
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(stderr(&out).contains("has none"), "{}", stderr(&out));
    assert_as_before(&rig, Board::Uboot, &before, &stderr(&out));
    rig.ok(&["rm", &fail]);
}
