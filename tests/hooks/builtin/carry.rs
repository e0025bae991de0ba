//! `0-carry-boot`: what it carries, and what stops it.

use std::fs;

use copal::error::Code;
use copal::slot::Slot;
use copal::state::files::{Marker, RollbackKind, RollbackRecord};
use copal::state::phase::Marked;

use super::machine::{ENCRYPTED, Kind, Machine, PLAIN};
use crate::kit::device_tree::model;

const RUNNING: &str = "/mnt/sysroot/active/current/boot";
const NEW: &str = "/mnt/sysroot/inactive/balena/volumes/v/_data";

/// A device whose owner has named one tree and pinned another, which the release has, too.
fn machine(kind: Kind) -> Machine {
    let mut m = Machine::new(kind);
    m.tree.file("/proc/sys/kernel/random/boot_id", "one\n");
    let plain = if kind.encrypted { "/mnt/efi" } else { "/mnt/boot" };
    m.tree.file(&format!("{plain}/extra_uEnv.txt"), "custom_fdt_file=over/own.dtb\n");
    m.tree.file("/mnt/boot/copal/keep", "pinned.dtb\n");
    let root = format!("resin_root_part={}\nupgrade_available=0\n", kind.first_root);
    m.tree.file(&format!("{plain}/resinOS_uEnv.txt"), &root);
    m.tree.file(&format!("{RUNNING}/over/own.dtb"), "");
    fs::write(m.at(RUNNING).join("over/own.dtb"), model("the owner's", 0)).unwrap();
    m.tree.file(&format!("{RUNNING}/pinned.dtb"), "the owner's");
    m.tree.file(&format!("{NEW}/pinned.dtb"), "the release's");
    m.tree.link("/mnt/sysroot/inactive/hostapps/c/boot", "../../balena/volumes/v/_data");
    m.tree.link("/mnt/sysroot/inactive/current", "hostapps/c");
    m
}

/// Whose file it is.
fn new(m: &Machine, name: &str) -> String {
    match fs::read(m.at(NEW).join(name)) {
        Ok(tree) if tree == model("the owner's", 0) => "the owner's".to_owned(),
        Ok(text) => String::from_utf8(text).unwrap(),
        Err(_) => String::new(),
    }
}

#[test]
fn in_an_update_of_a_shell_release_it_carries_or_ends_it() {
    let m = machine(PLAIN);
    m.run("0-carry-boot", false).unwrap();
    assert_eq!(new(&m, "over/own.dtb"), "", "nothing is installed");
    m.run("0-carry-boot", true).unwrap();
    assert_eq!([new(&m, "over/own.dtb"), new(&m, "pinned.dtb")], ["the owner's", "the owner's"]);
    let before = m.see();
    m.run("0-carry-boot", true).unwrap();
    assert_eq!(m.see(), before);

    let mut m = machine(PLAIN);
    m.tree.file("/etc/copal/update.conf", "DEVICE_TREE_REQUIRED=1\n");
    fs::remove_file(m.at(RUNNING).join("over/own.dtb")).unwrap();
    let before = m.see();
    assert_eq!(m.run("0-carry-boot", true).unwrap_err().code(), Code::DeviceTreeMissing);
    assert_eq!(m.see(), before);
    let m = machine(ENCRYPTED);
    let before = m.see();
    m.run("0-carry-boot", true).unwrap();
    assert_eq!(m.see(), before, "with secure boot nothing is carried");

    // Where nothing is asked for, not even the roots are looked for.
    let m = machine(PLAIN);
    for file in ["extra_uEnv.txt", "copal/keep"] {
        fs::remove_file(m.at("/mnt/boot").join(file)).unwrap();
    }
    fs::remove_file(m.at("/proc/self/mountinfo")).unwrap();
    m.run("0-carry-boot", true).unwrap();
}

/// The release that a device goes back to has run with its own files.
#[test]
fn in_a_rollback_nothing_is_replaced_and_nothing_fails() {
    let rollback = |m: &Machine| {
        let (transaction, boot_id) = (String::new(), "one".to_owned());
        let record = RollbackRecord { target: Slot::B, kind: RollbackKind::Health, transaction, boot_id };
        record.write(&m.paths()).unwrap();
    };
    // By copal, and by a shell release, which leaves no record.
    let trial = |m: &Machine| {
        fs::write(m.at("/mnt/boot/resinOS_uEnv.txt"), "resin_root_part=2\nupgrade_available=1\n").unwrap();
    };
    for goes_back in [&rollback as &dyn Fn(&Machine), &trial] {
        // It has booted without a tree that it lacks, unless the board needs one.
        for (conf, own) in [("", ""), ("DEVICE_TREE_REQUIRED=1\n", "the owner's")] {
            let mut m = machine(PLAIN);
            goes_back(&m);
            m.tree.file("/etc/copal/update.conf", conf);
            m.run("0-carry-boot", true).unwrap();
            assert_eq!([new(&m, "over/own.dtb"), new(&m, "pinned.dtb")], [own, "the release's"]);
        }
        let mut m = machine(PLAIN);
        goes_back(&m);
        m.tree.file("/etc/copal/update.conf", "DEVICE_TREE_REQUIRED=1\n");
        fs::remove_file(m.at(RUNNING).join("over/own.dtb")).unwrap();
        m.run("0-carry-boot", true).unwrap();
    }
}

/// It has asked its caller already, who may have forced it.
#[test]
fn in_an_update_of_copal_it_refuses_nothing() {
    let m = machine(ENCRYPTED);
    let (kind, boot_id, transaction) = (Marked::Installing, "one".to_owned(), "t".to_owned());
    Marker { kind, boot_id, target: Slot::B, transaction }.set(&m.paths()).unwrap();
    let before = m.see();
    m.run("0-carry-boot", true).unwrap();
    assert_eq!(m.see(), before);
}
