use std::time::Instant;

use copal::rollback::clear_bootcount;

use super::device::{COUNT, UENV, copal, is_there, marker, read, snapshot, uboot, with_block};
use crate::kit::process::HANG;
use crate::kit::tree::Tree;

/// A device in each phase that the bootloader's count can be seen in, with a count of 2; and whether it may be cleared.
fn phases() -> Vec<(&'static str, Tree, bool)> {
    let mut installing = uboot("2", 0, 2);
    marker(&mut installing, "installing");
    let mut pending = uboot("3", 1, 2);
    marker(&mut pending, "installing");
    let mut interrupted = uboot("3", 0, 2);
    marker(&mut interrupted, "installing");
    let mut rolled_back = uboot("2", 1, 2);
    marker(&mut rolled_back, "rolled-back");
    let mut rolling_back = uboot("2", 1, 2);
    rolling_back.file("/mnt/state/copal/rollback", r#"{"target":"B","kind":"health"}"#);
    let mut finishing = uboot("2", 1, 2);
    finishing.file("/mnt/state/copal/rollback", r#"{"target":"A","kind":"altboot"}"#);
    vec![
        ("healthy", uboot("2", 0, 2), false),
        ("installing", installing, false),
        ("pending", pending, true),
        ("interrupted", interrupted, false),
        ("trial", uboot("2", 1, 2), true),
        ("altboot", uboot("3", 1, 2), false),
        ("rolling back", rolling_back, false),
        ("finishing", finishing, false),
        ("rolled back", rolled_back, false),
    ]
}

#[test]
fn it_is_cleared_in_a_trial_and_before_one_and_nowhere_else() {
    for (phase, t, cleared) in phases() {
        let before = snapshot(&t);
        let uenv = read(&t, UENV);
        let (code, out, err) = copal(&t, &["rollback-clear-bootcount"]);
        assert_eq!((code, out.as_str()), (0, ""), "{phase}: {err}");
        if cleared {
            assert!(!is_there(&t, COUNT), "{phase}");
            assert_eq!(read(&t, UENV), uenv, "{phase}");
        } else {
            assert_eq!(snapshot(&t), before, "{phase}");
        }
    }
}

#[test]
fn blocks_too() {
    for (file, running, other) in
        [("grub/grubenv", "2", "3"), ("EFI/BOOT/grubenv", "2", "3"), ("bootenv", "A", "B")]
    {
        let file = format!("/mnt/boot/{file}");
        let t = with_block(&file, running, 1, 1);
        let before = read(&t, &file).unwrap();
        clear_bootcount::run(&t.paths()).unwrap();
        assert_eq!(read(&t, &file).unwrap(), before.replace("bootcount=1", "bootcount=0"), "{file}");
        let t = with_block(&file, other, 1, 2);
        let before = snapshot(&t);
        clear_bootcount::run(&t.paths()).unwrap();
        assert_eq!(snapshot(&t), before, "{file}: altboot");
    }
}

#[test]
fn without_breadcrumbs_and_with_them_alike() {
    for breadcrumb in [false, true] {
        let mut t = uboot("2", 1, 1);
        if breadcrumb {
            t.file(super::device::ALTBOOT, "");
        }
        clear_bootcount::run(&t.paths()).unwrap();
        assert!(!is_there(&t, COUNT), "{breadcrumb}");
    }
}

/// U-Boot would take the other root after this reboot.
#[test]
fn a_count_over_the_limit_goes_where_the_selected_system_runs_without_a_trial() {
    for (root, count, goes) in [("2", 5, true), ("2", 3, false), ("3", 5, false)] {
        let t = uboot(root, 0, count);
        let before = snapshot(&t);
        clear_bootcount::run(&t.paths()).unwrap();
        assert_eq!(is_there(&t, COUNT), !goes, "{root}, {count}");
        assert!(goes || snapshot(&t) == before, "{root}, {count}");
    }
    // A device that was never updated.
    let mut t = super::device::device();
    t.file(COUNT, "bootcount=9\n\0");
    clear_bootcount::run(&t.paths()).unwrap();
    assert!(!is_there(&t, COUNT));
}

/// An update to balenaOS 2.46.0, whose hooks have selected slot B in `grub.cfg`, waits for this reboot.
#[test]
fn a_selection_in_the_configuration_of_grub_stays() {
    let mut t = super::device::device();
    t.file("/mnt/boot/EFI/BOOT/grub.cfg", "resin_root_part=3\nupgrade_available=1\nload_env\n");
    t.file("/mnt/boot/EFI/BOOT/grubenv", &format!("{:#<1024}", "# GRUB Environment Block\nbootcount=0\n"));
    t.file(super::device::ALTBOOT, "");
    let before = snapshot(&t);
    clear_bootcount::run(&t.paths()).unwrap();
    assert_eq!(snapshot(&t), before);
}

#[test]
fn what_cannot_be_parsed_stays_and_is_reported_at_once() {
    let mut t = uboot("2", 1, 2);
    t.file("/mnt/state/copal/rollback", "{");
    let before = snapshot(&t);
    let start = Instant::now();
    let (code, _, err) = copal(&t, &["rollback-clear-bootcount"]);
    assert_eq!(code, 1);
    assert!(err.contains("[state-invalid]"), "{err}");
    assert_eq!(snapshot(&t), before);
    // The boot partition is gone already.
    assert_eq!(copal(&Tree::new(), &["rollback-clear-bootcount"]).0, 1);
    assert!(start.elapsed() < HANG);
}
