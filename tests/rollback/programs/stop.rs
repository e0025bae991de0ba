use std::fs;
use std::os::unix::fs::MetadataExt as _;

use copal::error::{Code, Effect};
use copal::job::lock::{Lock, Work};
use copal::rollback::stop;

use super::device::{
    ALTBOOT, COUNT, HEALTH, UENV, VARIABLES, copal, device, is_there, marker, read, snapshot, traces, uboot,
    with_block,
};
use crate::kit::stub_engine::{Kind, Script, Stub, Then};
use crate::kit::tree::Tree;

#[track_caller]
fn no_trace(t: &Tree) {
    for file in [HEALTH, ALTBOOT, VARIABLES, "/mnt/state/rollback-health-failed"] {
        assert!(!is_there(t, file), "{file}");
    }
    // What became of the update stays to be seen.
    for flag in ["health-triggered", "altboot-triggered"] {
        assert!(is_there(t, &format!("/mnt/state/rollback-{flag}")), "{flag}");
    }
}

#[test]
fn a_trial_ends_with_every_backend() {
    for (file, root) in [("grub/grubenv", "2"), ("EFI/BOOT/grubenv", "2"), ("bootenv", "A")] {
        let file = format!("/mnt/boot/{file}");
        let mut t = with_block(&file, root, 1, 1);
        traces(&mut t);
        stop::run(&t.paths(), false).unwrap();
        let block = read(&t, &file).unwrap();
        assert_eq!(block.len(), 1024, "{file}");
        for line in [format!("resin_root_part={root}"), "upgrade_available=0".into(), "bootcount=0".into()] {
            assert!(block.lines().any(|l| l == line), "{file}: {line} in {block}");
        }
        assert!(block.contains("\nother=kept\n"), "{block}");
        no_trace(&t);
    }
    let mut t = uboot("2", 1, 2);
    traces(&mut t);
    stop::run(&t.paths(), false).unwrap();
    assert_eq!(read(&t, UENV).unwrap(), "resin_root_part=2\nupgrade_available=0\n");
    assert!(!is_there(&t, COUNT));
    no_trace(&t);
}

#[test]
fn a_count_without_a_trial_goes_too() {
    let t = uboot("2", 0, 4);
    stop::run(&t.paths(), false).unwrap();
    assert!(!is_there(&t, COUNT));
}

#[test]
fn where_nothing_is_on_trial_nothing_is_written_on_the_boot_partition() {
    let mut t = uboot("2", 0, 0);
    traces(&mut t);
    let before = fs::metadata(t.paths().at(UENV)).unwrap();
    stop::run(&t.paths(), false).unwrap();
    let after = fs::metadata(t.paths().at(UENV)).unwrap();
    assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    no_trace(&t);
}

#[test]
fn it_is_refused_while_the_other_root_is_selected() {
    for kind in [None, Some("installing"), Some("rolled-back")] {
        let mut t = uboot("3", 1, 2);
        traces(&mut t);
        if let Some(kind) = kind {
            marker(&mut t, kind);
        }
        let before = snapshot(&t);
        let e = stop::run(&t.paths(), false).unwrap_err();
        assert_eq!((e.code(), e.effect()), (Code::StopRefused, Effect::Refused), "{e}");
        let (code, out, err) = copal(&t, &["rollback-stop"]);
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains("slot A runs, but another root is selected"), "{err}");
        assert_eq!(copal(&t, &["rollback", "stop"]).0, 3);
        assert_eq!(snapshot(&t), before);
    }
}

#[test]
fn it_is_refused_while_a_rollback_to_the_other_root_is_under_way() {
    let mut t = uboot("2", 1, 0);
    t.file("/mnt/state/copal/rollback", r#"{"target":"B","kind":"health"}"#);
    let before = snapshot(&t);
    assert_eq!(stop::run(&t.paths(), false).unwrap_err().code(), Code::StopRefused);
    assert_eq!(snapshot(&t), before);
}

#[test]
fn hooks_of_an_update_that_was_killed_are_ended_first() {
    let mut t = uboot("2", 0, 0);
    traces(&mut t);
    marker(&mut t, "installing");
    let one = Kind::Says(vec![r#"[{"Id":"c0ffee"}]"#.to_owned()], Then::End);
    let script = Script::new(t.paths().at("/mnt/sysroot/inactive/balena")).fault("containers", 1, one);
    let stub = Stub::start(&t.paths().at("/var/run/balena-host.sock"), script);
    stop::run(&t.paths(), false).unwrap();
    assert_eq!(stub.calls(), ["containers", "remove-container", "containers"]);
    no_trace(&t);
    // Elsewhere nothing can be left.
    let mut t = uboot("2", 1, 2);
    traces(&mut t);
    let stub = Stub::start(&t.paths().at("/var/run/balena-host.sock"), Script::new(t.paths().at("/engine")));
    stop::run(&t.paths(), false).unwrap();
    assert_eq!(stub.calls(), [""; 0]);
}

#[test]
fn with_force_what_is_selected_stays_selected() {
    let mut t = uboot("3", 1, 2);
    traces(&mut t);
    let (code, _, err) = copal(&t, &["rollback-stop", "--force"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(read(&t, UENV).unwrap(), "resin_root_part=3\nupgrade_available=0\n");
    assert!(!is_there(&t, COUNT));
    no_trace(&t);
    let t = uboot("7", 1, 2);
    let before = snapshot(&t);
    let e = stop::run(&t.paths(), true).unwrap_err();
    assert_eq!(e.code(), Code::BootStateInvalid, "{e}");
    assert!(e.message().contains("partition 7"), "{e}");
    assert_eq!(snapshot(&t), before);
}

#[test]
fn the_selection_goes_first_and_the_breadcrumb_of_the_health_checks_last() {
    // A block that has no room for the count: nothing else may be changed.
    let mut t = device();
    let text = "# GRUB Environment Block\nresin_root_part=2\nupgrade_available=1\nfull=";
    t.file("/mnt/boot/grub/grubenv", &format!("{text}{}\n", "x".repeat(1023 - text.len())));
    traces(&mut t);
    let e = stop::run(&t.paths(), false).unwrap_err();
    assert_eq!(e.code(), Code::BootStateUnwritable, "{e}");
    for file in [HEALTH, ALTBOOT, VARIABLES] {
        assert!(is_there(&t, file), "{file}");
    }
    // The other breadcrumb cannot be removed: this one stays, and the next boot goes on.
    let mut t = uboot("2", 1, 0);
    traces(&mut t);
    fs::remove_file(t.paths().at(ALTBOOT)).unwrap();
    t.file(&format!("{ALTBOOT}/x"), "");
    let e = stop::run(&t.paths(), false).unwrap_err();
    assert_eq!((e.code(), e.effect()), (Code::StateUnwritable, Effect::Written), "{e}");
    assert!(read(&t, UENV).unwrap().contains("upgrade_available=0"));
    assert!(!is_there(&t, VARIABLES) && is_there(&t, HEALTH));
    assert_eq!(copal(&t, &["rollback", "stop"]).0, 4);
}

#[test]
fn a_boot_partition_that_is_not_mounted_stops_it() {
    let mut t = Tree::new();
    t.folder("/mnt/state").file(HEALTH, "");
    assert!(stop::run(&t.paths(), false).is_err());
    assert!(is_there(&t, HEALTH));
}

#[test]
fn an_update_under_way_keeps_it_out() {
    let mut t = uboot("2", 0, 0);
    traces(&mut t);
    let lock = Lock::take(&t.paths(), "hostapp-update", Work::Update).unwrap();
    let before = snapshot(&t);
    for force in [false, true] {
        assert_eq!(stop::run(&t.paths(), force).unwrap_err().code(), Code::Busy);
    }
    assert_eq!(snapshot(&t), before);
    lock.release();
    stop::run(&t.paths(), false).unwrap();
    no_trace(&t);
}
