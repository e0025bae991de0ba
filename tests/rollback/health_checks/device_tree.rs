//! The kernel has the device tree that the owner names, if it had it before the update.

use copal::slot::Slot;
use copal::state::files::Trial;
use copal::state::history::CheckResult::{self, Failed, Passed, Unknown};
use copal::update::snapshot;

use super::rig::Rig;
use crate::kit::device_tree::device_tree;

const MEMORY: &[u8] = b"\0\0\0\0\x40\0\0\0";

fn custom(model: &[u8]) -> Vec<u8> {
    device_tree(&[
        ("", &[("model", model)]),
        ("chosen", &[("bootargs", b"quiet\0")]),
        ("can@1", &[("compatible", b"microchip,mcp2515\0"), ("status", b"okay\0")]),
    ])
}

fn default() -> Vec<u8> {
    device_tree(&[("", &[("model", b"A board\0")]), ("can@1", &[("compatible", b"microchip,mcp2515\0")])])
}

/// A tree that the bootloader has edited: memory, kernel command line, serial number.
fn edited(model: &[u8], status: &[u8]) -> Vec<u8> {
    device_tree(&[
        ("", &[("model", model), ("serial-number", b"1234\0")]),
        ("memory@0", &[("reg", MEMORY)]),
        ("chosen", &[("bootargs", b"quiet root=/dev/sda2\0")]),
        ("can@1", &[("compatible", b"microchip,mcp2515\0"), ("status", status)]),
    ])
}

fn put(rig: &Rig, path: &str, bytes: &[u8]) {
    let path = rig.root.at(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

const LIVE: &str = "/sys/firmware/fdt";
const BOOT: &str = "/mnt/sysroot/active/current/boot";

/// A device that runs the owner's tree, in the trial of a new system that has it, too.
fn rig() -> Rig {
    let rig = Rig::healthy();
    rig.put("/etc/copal/update.conf", "DEVICE_TREE_DEFAULT=board.dtb\n");
    rig.put("/mnt/boot/extra_uEnv.txt", "custom_fdt_file=mine.dtb\n");
    put(&rig, &format!("{BOOT}/mine.dtb"), &custom(b"Mine\0"));
    put(&rig, &format!("{BOOT}/board.dtb"), &default());
    put(&rig, LIVE, &edited(b"Mine\0", b"okay\0"));
    snapshot::keep_device_tree(&rig.paths(), "t1").unwrap();
    Trial { transaction: "t1".to_owned(), slot: Slot::B, resets: 1 }.write(&rig.paths()).unwrap();
    rig
}

fn result(rig: &Rig) -> CheckResult {
    let (result, reason) = rig.one("device-tree");
    eprintln!("{reason}");
    result
}

#[test]
fn a_default_that_the_bootloader_takes_in_silence_fails_the_trial() {
    let rig = rig();
    assert_eq!(result(&rig), Passed);
    put(&rig, LIVE, &default());
    let checks = rig.run();
    assert!(!copal::rollback::checks::passed(&checks), "{checks:?}");
    let (result, reason) = rig.one("device-tree");
    assert_eq!(result, Failed);
    assert!(reason.contains("mine.dtb") && reason.contains("/can@1/status"), "{reason}");
}

#[test]
fn a_tree_that_was_lost_fails_the_trial() {
    let rig = rig();
    std::fs::remove_file(rig.root.at(&format!("{BOOT}/mine.dtb"))).unwrap();
    put(&rig, LIVE, &default());
    assert_eq!(result(&rig), Failed);
}

/// The command line in the tree is replaced at every boot, so that it never counted.
#[test]
fn what_the_bootloader_edits_does_not_count() {
    let rig = rig();
    let other = device_tree(&[
        ("", &[("model", b"Mine\0")]),
        ("chosen", &[("bootargs", b"root=/dev/sda3\0"), ("kaslr-seed", b"12345678")]),
        ("memory@0", &[("reg", b"\0\0\0\0\x80\0\0\0")]),
        ("can@1", &[("compatible", b"microchip,mcp2515\0"), ("status", b"okay\0")]),
    ]);
    put(&rig, LIVE, &other);
    assert_eq!(result(&rig), Passed);
}

/// The tree that is named may be one of the release, which changes it.
#[test]
fn a_new_version_of_the_tree_is_compared_with_itself() {
    let rig = rig();
    put(&rig, &format!("{BOOT}/mine.dtb"), &custom(b"Mine 2\0"));
    put(&rig, LIVE, &edited(b"Mine 2\0", b"okay\0"));
    assert_eq!(result(&rig), Passed);
    put(&rig, LIVE, &default());
    assert_eq!(result(&rig), Failed);
}

/// A new bootloader, or an overlay of the owner, may change some of the properties that nothing had changed before.
#[test]
fn one_property_more_that_is_edited_is_no_default() {
    let rig = rig();
    put(&rig, LIVE, &edited(b"Mine\0", b"disabled\0"));
    assert_eq!(result(&rig), Passed);
}

#[test]
fn where_nothing_can_tell_it_passes_as_unknown() {
    let without = |change: &dyn Fn(&Rig)| {
        let rig = rig();
        change(&rig);
        result(&rig)
    };
    // An update by a shell release has kept nothing.
    let other_trial = |rig: &Rig| {
        Trial { transaction: "t2".to_owned(), slot: Slot::B, resets: 1 }.write(&rig.paths()).unwrap();
    };
    assert_eq!(without(&other_trial), Unknown);
    assert_eq!(without(&|rig| rig.put("/etc/copal/update.conf", "")), Unknown);
    assert_eq!(without(&|rig| std::fs::remove_file(rig.root.at(LIVE)).unwrap()), Unknown);
    assert_eq!(without(&|rig| put(rig, LIVE, b"no tree")), Unknown);
    assert_eq!(without(&|rig| rig.put("/mnt/boot/extra_uEnv.txt", "custom_fdt_file=other.dtb\n")), Unknown);
    // The device ran the default before the update, with a name that led nowhere.
    let ran_default = |rig: &Rig| {
        put(rig, LIVE, &default());
        snapshot::keep_device_tree(&rig.paths(), "t1").unwrap();
    };
    assert_eq!(without(&ran_default), Unknown);
}

#[test]
fn without_a_name_there_is_no_check() {
    let rig = rig();
    rig.put("/mnt/boot/extra_uEnv.txt", "");
    assert!(rig.run().iter().all(|check| check.name != "device-tree"));
}

#[test]
fn the_owner_may_have_it_only_reported() {
    let mut rig = rig();
    rig.conf.device_tree_required = false;
    put(&rig, LIVE, &default());
    assert_eq!(result(&rig), Failed);
    assert!(copal::rollback::checks::passed(&rig.run()));
}
