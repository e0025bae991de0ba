//! Release and old boot partition in, new boot partition out.

use copal::boot_files::deploy::Purpose;
use copal::error::Code;
use copal::slot::Slot;
use copal::state::files::Marker;
use copal::state::phase::Marked;

use super::support::{Device, md5sum_is_content, stamps};
use crate::kit::files::tree;

pub const OLD: &[(&str, &str)] = &[
    ("config.json", "{\"uuid\": \"abc\"}"),
    ("config.txt", "the owner's"),
    ("image-version-info", "old"),
    ("overlays/a.dtbo", "same"),
    ("overlays/b.dtbo", "old b"),
    ("resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n"),
    ("splash/balena-logo.png", "the owner's"),
    ("system-connections/wifi", "the owner's"),
    ("zImage", "old kernel"),
];

pub const NEW: &[(&str, &str)] = &[
    ("balenaos.fingerprint", "of the image"),
    ("bootenv", "of the image"),
    ("config.json", "{}"),
    ("config.txt", "of the image"),
    ("extra_uEnv.txt", "of the image"),
    ("image-version-info", "new"),
    ("link", "-> zImage"),
    ("new/deep/file", "new"),
    ("overlays/a.dtbo", "same"),
    ("overlays/b.dtbo", "new b"),
    ("resinOS_uEnv.txt", "resin_root_part=9\n"),
    ("splash/balena-logo.png", "of the image"),
    ("zImage", "new kernel, longer"),
];

pub const UPDATED: &[(&str, &str)] = &[
    ("config.json", "{\"uuid\": \"abc\"}"),
    ("config.txt", "the owner's"),
    ("extra_uEnv.txt", "of the image"),
    ("image-version-info", "new"),
    ("new/", ""),
    ("new/deep/", ""),
    ("new/deep/file", "new"),
    ("overlays/", ""),
    ("overlays/a.dtbo", "same"),
    ("overlays/b.dtbo", "new b"),
    ("resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n"),
    ("splash/", ""),
    ("splash/balena-logo.png", "the owner's"),
    ("system-connections/", ""),
    ("system-connections/wifi", "the owner's"),
    ("zImage", "new kernel, longer"),
];

/// The release that runs in the golden tests.
pub const RUNNING: &[(&str, &str)] = &[
    ("config.json", "{}"),
    ("image-version-info", "old"),
    ("overlays/a.dtbo", "same"),
    ("overlays/b.dtbo", "old b"),
    ("zImage", "old kernel"),
];

#[test]
fn a_first_update() {
    let device = Device::new(OLD, NEW);
    device.update().unwrap();
    assert_eq!(device.see(), tree(UPDATED));
    assert!(md5sum_is_content(&device.boot()));
    assert_eq!(device.record().unwrap().owner, Slot::B);
}

#[test]
fn the_fingerprint_is_as_the_shell_wrote_it() {
    let device = Device::new(&[("b/x", "1"), ("B", "2"), ("a b", ""), ("b.txt", "3")], &[("z", "")]);
    std::fs::write(device.boot().join("b/config.json"), "{}").unwrap();
    std::fs::write(device.boot().join("CPL00000.TMP"), "left over").unwrap();
    let side = ".gone.0123abcd.00112233445566778899aabbccddeeff.md5sum";
    std::fs::write(device.boot().join(side), "left over").unwrap();
    device.update().unwrap();
    let shell = std::process::Command::new("sh")
        .current_dir(device.boot())
        .env("LC_ALL", "C")
        .args([
            "-c",
            "find ./ -xdev -type f ! -name balenaos.fingerprint ! -name config.json ! -name '.gone*' \
               -exec md5sum {} \\; | sed 's#\\./##g' | sort -k2",
        ])
        .output()
        .unwrap();
    let own = std::fs::read_to_string(device.boot().join("balenaos.fingerprint")).unwrap();
    assert_eq!(own, String::from_utf8(shell.stdout).unwrap());
    assert_eq!(own.lines().count(), 5, "{own}");
}

#[test]
fn a_repetition_writes_nothing() {
    let device = Device::new(OLD, NEW);
    device.update().unwrap();
    let before = stamps(&device.boot());
    std::thread::sleep(std::time::Duration::from_millis(20));
    let done = device.deploy(Purpose::Update).unwrap();
    assert_eq!((done.written, done.removed), (0, 0));
    assert_eq!(done.unchanged, 6 - 1);
    assert_eq!(stamps(&device.boot()), before);
}

/// After an update that changed a file, every deployed file has a new time. Other files keep theirs.
#[test]
fn times_are_refreshed() {
    let device = Device::new(OLD, NEW);
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    let modified = |name: &str| std::fs::metadata(device.boot().join(name)).unwrap().modified().unwrap();
    for name in ["overlays/a.dtbo", "overlays/b.dtbo", "config.txt"] {
        let file = std::fs::File::options().write(true).open(device.boot().join(name)).unwrap();
        file.set_modified(old).unwrap();
    }
    let inode = stamps(&device.boot())["overlays/a.dtbo"].0;
    device.update().unwrap();
    assert!(modified("overlays/a.dtbo") > old && modified("overlays/b.dtbo") > old);
    assert_eq!(modified("config.txt"), old);
    assert_eq!(stamps(&device.boot())["overlays/a.dtbo"].0, inode, "it was written");
}

#[test]
fn an_undo_puts_the_running_release_back() {
    let device = Device::new(OLD, NEW);
    device.update().unwrap();
    device.release(RUNNING);
    device.undo().unwrap();
    let mut wanted = tree(UPDATED);
    for (path, content) in RUNNING.iter().filter(|f| f.0 != "config.json") {
        wanted.insert((*path).into(), (*content).into());
    }
    assert_eq!(device.see(), wanted);
    assert!(md5sum_is_content(&device.boot()));
    assert_eq!(device.record().unwrap().owner, Slot::A);
}

/// With boot files that are alike, the record of the other slot would otherwise stay for ever.
#[test]
fn an_undo_with_nothing_to_write_takes_the_record_over() {
    let device = Device::new(RUNNING, NEW);
    device.update().unwrap();
    assert_eq!(device.record().unwrap().owner, Slot::B);
    device.undo().unwrap();
    assert_eq!(device.record().unwrap().owner, Slot::A);
}

#[test]
fn the_record_names_the_update() {
    let device = Device::new(OLD, NEW);
    device.update().unwrap();
    let own = device.record().unwrap().transaction;
    assert_eq!(own.len(), 36);
    std::fs::write(device.boot().join("zImage"), "torn").unwrap();
    device.update().unwrap();
    assert_eq!(device.record().unwrap().transaction, own, "a second attempt is the same update");
    std::fs::create_dir_all(device.at("/run")).unwrap();
    let marker =
        Marker { kind: Marked::Installing, boot_id: "one".into(), target: Slot::B, transaction: "t7".into() };
    marker.set(&device.paths()).unwrap();
    std::fs::write(device.boot().join("zImage"), "torn").unwrap();
    device.update().unwrap();
    assert_eq!(device.record().unwrap().transaction, "t7");
}

#[test]
fn without_a_state_partition_an_update_changes_nothing_and_an_undo_goes_on() {
    let device = Device::new(OLD, NEW);
    std::fs::remove_dir(device.paths().state()).unwrap();
    let before = stamps(&device.boot());
    assert_eq!(device.update().unwrap_err().code(), Code::StateUnwritable);
    assert_eq!(stamps(&device.boot()), before);
    device.undo().unwrap();
    assert_eq!(device.see(), tree(UPDATED));
}

#[test]
fn what_is_missing_is_refused_before_anything_changes() {
    // No boot files, nothing mounted, the other root not there.
    let device = Device::new(OLD, NEW);
    std::fs::remove_dir_all(device.at("/resin-boot")).unwrap();
    let before = stamps(&device.boot());
    for during_update in [true, false] {
        let e = device.hook("1-bootfiles", during_update).unwrap_err();
        assert_eq!(e.code(), Code::BootFilesInvalid, "{e}");
    }
    let mut unmounted = device.request(Purpose::Update);
    unmounted.target = device.at("/mnt/elsewhere");
    let e = unmounted.deploy().unwrap_err();
    assert_eq!(e.code(), Code::BootMountFailed, "{e}");
    assert_eq!(stamps(&device.boot()), before);
    assert_eq!(device.record(), None);
}

/// The script splits such a path into two, finds neither, and fails every update of the release.
#[test]
fn a_name_with_a_blank_is_one_name() {
    let device = Device::new(
        &[("a b.txt", "old"), ("with blank/old file", "the same"), ("a", "the owner's")],
        &[("a b.txt", "new"), ("with blank/old file", "the same"), ("with blank/new file", "new")],
    );
    device.update().unwrap();
    let updated = tree(&[
        ("a", "the owner's"),
        ("a b.txt", "new"),
        ("with blank/", ""),
        ("with blank/new file", "new"),
        ("with blank/old file", "the same"),
    ]);
    assert_eq!(device.see(), updated);
    assert!(md5sum_is_content(&device.boot()));
    device.release(&[("a b.txt", "of the running release")]);
    device.undo().unwrap();
    assert_eq!(device.see()["a b.txt"], "of the running release");
}

/// A folder, or a link, has the name of a boot file.
#[test]
fn what_is_in_the_way_stops_an_update_and_not_an_undo() {
    let mut old = OLD.to_vec();
    old.retain(|f| f.0 != "image-version-info");
    for in_the_way in [("image-version-info/x", "a folder"), ("image-version-info", "-> zImage")] {
        old.push(in_the_way);
        let device = Device::new(&old, NEW);
        let before = stamps(&device.boot());
        let e = device.update().unwrap_err();
        assert!(matches!(e.code(), Code::BootNameInvalid | Code::BootPathEscapes), "{e}");
        assert_eq!(stamps(&device.boot()), before);
        let e = device.undo().unwrap_err();
        assert!(e.message().contains("image-version-info"), "{e}");
        assert_eq!(device.see()["zImage"], "new kernel, longer");
        assert!(md5sum_is_content(&device.boot()));
        old.pop();
    }
}

/// `fatrw` would put it over the new file at its next read.
#[test]
fn stale_side_files_go_and_those_of_the_owner_stay() {
    let device = Device::new(OLD, NEW);
    let side = |name: &str| format!(".{name}.0123abcd.00112233445566778899aabbccddeeff.md5sum");
    for name in ["zImage", "overlays/a.dtbo", "config.json"] {
        let path = device.boot().join(name);
        let beside = path.with_file_name(side(path.file_name().unwrap().to_str().unwrap()));
        std::fs::write(beside, "stale").unwrap();
    }
    std::fs::write(device.boot().join("overlays/CPL0A0B1.TMP"), "left over").unwrap();
    device.update().unwrap();
    let mut wanted = tree(UPDATED);
    wanted.insert(side("config.json"), "stale".into());
    assert_eq!(device.see(), wanted);
    assert!(md5sum_is_content(&device.boot()));
}
