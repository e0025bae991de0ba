use super::*;
use crate::slot::Slot;
use crate::state::phase::Marked;

fn device() -> (tempfile::TempDir, Paths) {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["mnt/state", "run", "proc/sys/kernel/random"] {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    fs::write(dir.path().join("proc/sys/kernel/random/boot_id"), "one\n").unwrap();
    let paths = Paths::new(dir.path());
    (dir, paths)
}

#[test]
fn breadcrumbs_come_and_go_together() {
    let (_dir, paths) = device();
    assert!(!any_breadcrumb(&paths).unwrap());
    drop_breadcrumbs(&paths).unwrap();
    drop_breadcrumbs(&paths).unwrap();
    for name in ["rollback-health-breadcrumb", "rollback-altboot-breadcrumb"] {
        assert_eq!(fs::read(paths.state().join(name)).unwrap(), b"", "{name}");
    }
    fs::remove_file(paths.state().join("rollback-altboot-breadcrumb")).unwrap();
    assert!(any_breadcrumb(&paths).unwrap());
    remove_breadcrumbs(&paths).unwrap();
    remove_breadcrumbs(&paths).unwrap();
    assert_eq!(fs::read_dir(paths.state()).unwrap().count(), 0);
}

#[test]
fn flags_have_the_names_that_others_look_for() {
    let (_dir, paths) = device();
    let names = ["rollback-health-triggered", "rollback-altboot-triggered", "rollback-health-failed"];
    for (flag, name) in Flag::ALL.into_iter().zip(names) {
        assert!(!flag.is_up(&paths).unwrap());
        flag.raise(&paths).unwrap();
        assert!(flag.is_up(&paths).unwrap() && paths.state().join(name).is_file());
        flag.lower(&paths).unwrap();
        assert!(!flag.is_up(&paths).unwrap());
    }
}

#[test]
fn the_vpn_state_is_kept_as_shell_sources_it() {
    let (_dir, paths) = device();
    let file = paths.state().join("rollback-health-variables");
    assert_eq!(kept_vpn_state(&file), None);
    keep_vpn_state(&paths, true).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "BALENAOS_ROLLBACK_VPNONLINE=1\n");
    assert_eq!(kept_vpn_state(&file), Some(true));
    keep_vpn_state(&paths, false).unwrap();
    assert_eq!(kept_vpn_state(&file), Some(false));
    for (text, value) in
        [("BALENAOS_ROLLBACK_VPNONLINE=", None), ("BALENAOS_ROLLBACK_VPNONLINE='1'", Some(true))]
    {
        fs::write(&file, text).unwrap();
        assert_eq!(kept_vpn_state(&file), value, "{text}");
    }
    remove_variables(&paths).unwrap();
    assert!(!file.exists());
}

#[test]
fn a_marker_of_another_boot_counts_for_nothing() {
    let (_dir, paths) = device();
    assert_eq!(Marker::read(&paths).unwrap(), None);
    let marker = Marker {
        kind: Marked::RolledBack,
        boot_id: "one".into(),
        target: Slot::B,
        transaction: new_transaction().unwrap(),
    };
    marker.set(&paths).unwrap();
    assert_eq!(Marker::read(&paths).unwrap(), Some(marker));
    fs::write(paths.at("/proc/sys/kernel/random/boot_id"), "two\n").unwrap();
    assert_eq!(Marker::read(&paths).unwrap(), None);
    Marker::remove(&paths).unwrap();
    assert_eq!(fs::read_dir(paths.run_files()).unwrap().count(), 0);
}

#[test]
fn a_record_is_settled_by_its_own_slot_only() {
    let (_dir, paths) = device();
    let record = BootfilesRecord { transaction: "t".into(), owner: Slot::B };
    record.write(&paths).unwrap();
    BootfilesRecord::settle(&paths, Slot::A).unwrap();
    assert_eq!(BootfilesRecord::read(&paths).unwrap(), Some(record));
    BootfilesRecord::settle(&paths, Slot::B).unwrap();
    assert_eq!(BootfilesRecord::read(&paths).unwrap(), None);
    fs::write(paths.state_files().join("bootfiles"), "{\"owner\":").unwrap();
    assert_eq!(BootfilesRecord::read(&paths).unwrap_err().code(), Code::StateInvalid);
    BootfilesRecord::settle(&paths, Slot::A).unwrap();
    assert_eq!(BootfilesRecord::read(&paths).unwrap(), None);
}

#[test]
fn what_a_kill_has_left_goes_with_the_next_change() {
    let (_dir, paths) = device();
    fs::write(paths.state().join("CPL0A1B2.TMP"), "").unwrap();
    drop_breadcrumbs(&paths).unwrap();
    assert_eq!(fs::read_dir(paths.state()).unwrap().count(), 2);
}

#[test]
fn a_rollback_is_recorded() {
    let (_dir, paths) = device();
    let record = RollbackRecord {
        target: Slot::A,
        kind: RollbackKind::Altboot,
        transaction: "t".into(),
        boot_id: "one".into(),
    };
    record.write(&paths).unwrap();
    assert_eq!(RollbackRecord::read(&paths).unwrap(), Some(record));
    RollbackRecord::remove(&paths).unwrap();
    assert_eq!(RollbackRecord::read(&paths).unwrap(), None);
}

#[test]
fn a_state_partition_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::new(dir.path());
    assert_eq!(drop_breadcrumbs(&paths).unwrap_err().code(), Code::StateUnwritable);
    let record = BootfilesRecord { transaction: "t".into(), owner: Slot::B };
    assert_eq!(record.write(&paths).unwrap_err().code(), Code::StateUnwritable);
    remove_breadcrumbs(&paths).unwrap();
}

#[test]
fn the_place_of_a_record_that_holds_something_else_is_reported_and_used_again() {
    let (_dir, paths) = device();
    let at = |name: &str| paths.state_files().join(name);
    fs::create_dir_all(at("rollback/below")).unwrap();
    fs::write(at("rollback/below/file"), "").unwrap();
    nix::unistd::mkfifo(&at("bootfiles"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::write(paths.state().join("elsewhere"), "kept").unwrap();
    std::os::unix::fs::symlink("../elsewhere", at("trial")).unwrap();
    std::os::unix::fs::symlink("none", at("history.jsonl")).unwrap();
    let reported = || irregular_records(&paths).iter().map(Error::message).collect::<Vec<_>>().join("\n");
    for name in ["rollback", "bootfiles", "trial", "history.jsonl"] {
        assert!(
            reported().contains(&format!("copal/{name} is not a regular file")),
            "{name}: {}",
            reported()
        );
    }
    assert_eq!(RollbackRecord::read(&paths).unwrap_err().code(), Code::StateInvalid);
    assert_eq!(BootfilesRecord::read(&paths).unwrap_err().code(), Code::StateInvalid);
    // A link is not followed.
    assert_eq!(Trial::read(&paths).unwrap_err().code(), Code::StateInvalid);

    // Each writer and remover puts it right, and so does the start of an update.
    let record = BootfilesRecord { transaction: "t".into(), owner: Slot::B };
    record.write(&paths).unwrap();
    assert_eq!(BootfilesRecord::read(&paths).unwrap(), Some(record));
    RollbackRecord::remove(&paths).unwrap();
    assert_eq!(RollbackRecord::read(&paths).unwrap(), None);
    remove_irregular(&paths).unwrap();
    assert_eq!(Trial::read(&paths).unwrap(), None);
    assert_eq!(reported(), "");
    assert_eq!(fs::read(paths.state().join("elsewhere")).unwrap(), b"kept");
}
