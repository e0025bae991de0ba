use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::device_tree::blob::LEAST;

/// A running release and a boot folder of a new one.
struct Device(tempfile::TempDir);

const RUNNING: &str = "mnt/sysroot/active/current/boot";
const NEW: &str = "new";

impl Device {
    fn new(conf: &str, extra: &str) -> Device {
        let device = Device(tempfile::tempdir().unwrap());
        device.put("etc/copal/update.conf", conf);
        device.put("mnt/boot/extra_uEnv.txt", extra);
        device.put(&format!("{RUNNING}/init"), "mobynit");
        device.put(&format!("{NEW}/init"), "mobynit");
        device
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, text: &str) {
        fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        let tree: &[u8] = if name.contains(".dtb") { LEAST } else { b"" };
        fs::write(self.at(name), [tree, text.as_bytes()].concat()).unwrap();
    }

    fn running(&self, name: &str, text: &str) {
        self.put(&format!("{RUNNING}/{name}"), text);
    }

    fn new_has(&self, name: &str, text: &str) {
        self.put(&format!("{NEW}/{name}"), text);
    }

    fn read(&self, secure: bool) -> NewRelease {
        NewRelease::read(&Paths::new(self.0.path()), secure)
    }

    /// Objects of the problems, and the number of warnings.
    fn judged(&self, free: u64, secure: bool) -> (Vec<String>, usize) {
        let has = |file: &Path| match file.strip_prefix(BOOT) {
            Ok(name) => self.at(NEW).join(name).is_file(),
            Err(_) => self.at(file.to_str().unwrap()).is_file(),
        };
        let Judgement { problems, warnings } = self.read(secure).judge(&has, free);
        (problems.iter().map(|e| format!("{} {}", e.subject().unwrap(), e.code())).collect(), warnings.len())
    }

    fn carried(&self) -> Vec<(String, String)> {
        let Outcome { carried, problems } = self.read(false).carry(&self.at(NEW));
        assert!(problems.is_empty(), "{problems:?}");
        carried.into_iter().map(|c| (c.name, c.origin)).collect()
    }

    fn text(&self, name: &str) -> String {
        let content = fs::read(self.at(NEW).join(name)).unwrap_or_default();
        String::from_utf8(content.strip_prefix(LEAST).unwrap_or(&content).to_vec()).unwrap()
    }
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn what_the_release_lacks_is_carried_and_what_it_has_counts() {
    let conf = "CARRY_BOOT=\"firmware/cal.bin firmware/none.bin\"\n";
    let device = Device::new(conf, "custom_fdt_file=own.dtb\noverlay_files=over/a.dtbo\nfdtfile=board.dtb\n");
    for name in ["own.dtb", "over/a.dtbo", "board.dtb", "firmware/cal.bin", "other"] {
        device.running(name, "the owner's");
    }
    device.new_has("board.dtb", "the release's");
    assert_eq!(device.judged(u64::MAX, false), (vec![], 0));
    let expected = [
        ("own.dtb", "custom_fdt_file"),
        ("over/a.dtbo", "overlay_files"),
        ("firmware/cal.bin", "CARRY_BOOT"),
    ];
    assert_eq!(device.carried(), pairs(&expected));
    assert_eq!(
        (device.text("own.dtb"), device.text("over/a.dtbo")),
        ("the owner's".into(), "the owner's".into())
    );
    assert_eq!((device.text("board.dtb"), device.text("other")), ("the release's".into(), String::new()));
    assert_eq!(device.carried(), [], "a second time there is nothing to do");

    device.put("mnt/boot/copal/keep", "board.dtb\nother\nown.dtb\n");
    let expected = [("board.dtb", "fdtfile"), ("other", "keep")];
    let carried: BTreeSet<_> = device.carried().into_iter().collect();
    assert_eq!(carried, pairs(&expected).into_iter().collect());
    assert_eq!(device.text("board.dtb"), "the owner's");
    // A release that has run keeps its own files.
    device.new_has("board.dtb", "its own");
    fs::remove_file(device.at("new/own.dtb")).unwrap();
    // It has booted without a tree that it lacks, unless the board needs one.
    for (conf, own) in [(conf.to_owned(), ""), (format!("{conf}DEVICE_TREE_REQUIRED=1\n"), "the owner's")] {
        device.put("etc/copal/update.conf", &conf);
        device.read(false).add_only(&device.at(NEW));
        assert_eq!((device.text("board.dtb"), device.text("own.dtb")), ("its own".into(), own.into()));
    }
}

#[test]
fn a_release_of_which_the_owner_has_changed_nothing_has_no_files_of_his() {
    let device = Device::new("", "");
    let slot = "mnt/sysroot/active";
    fs::remove_dir_all(device.at(&format!("{slot}/current"))).unwrap();
    fs::create_dir_all(device.at(&format!("{slot}/hostapps/c/boot"))).unwrap();
    symlink("hostapps/c", device.at(&format!("{slot}/current"))).unwrap();
    device.put(&format!("{slot}/balena/image/overlay2/layerdb/mounts/c/mount-id"), "top");
    device.put(&format!("{slot}/balena/overlay2/top/diff/boot/board.dtb"), "the release's");
    device.running("own.dtb", "the owner's");
    for (text, is_owners) in [("the release's", false), ("the owner's", true)] {
        device.running("board.dtb", text);
        let release = device.read(false);
        assert_eq!(release.is_owners(Path::new("board.dtb")), is_owners);
        assert!(release.is_owners(Path::new("own.dtb")));
    }
}

#[test]
fn only_plain_files_are_carried() {
    let device = Device::new("", "custom_fdt_file=own.dtb\nfdt_file=dir/x.dtb\n");
    device.running("real.dtb", "x");
    symlink("real.dtb", device.at(RUNNING).join("own.dtb")).unwrap();
    symlink("..", device.at(RUNNING).join("dir")).unwrap();
    device.put("mnt/sysroot/active/current/x.dtb", "x");
    let lost = "own.dtb device-tree-missing".to_owned();
    assert_eq!(device.judged(u64::MAX, false), (vec![lost], 1));
    let Outcome { carried, problems } = device.read(false).carry(&device.at(NEW));
    assert_eq!((carried.len(), problems.len()), (0, 1));
    // The release's own is no loss, whatever the running folder has.
    device.new_has("own.dtb", "the release's");
    assert_eq!((device.judged(u64::MAX, false).0.len(), device.carried().len()), (0, 0));
    // Links of the release: one that leads to a file counts, another one gives way.
    fs::remove_file(device.at(RUNNING).join("own.dtb")).unwrap();
    device.running("own.dtb", "the owner's");
    device.new_has("its.dtb", "the release's");
    for (to, text) in [("its.dtb", "the release's"), ("none", "the owner's")] {
        fs::remove_file(device.at("new/own.dtb")).unwrap();
        symlink(to, device.at("new/own.dtb")).unwrap();
        device.carried();
        assert_eq!(device.text("own.dtb"), text);
    }
    // A mistake of the board ends no update.
    device.put("etc/copal/update.conf", "CARRY_BOOT=\"firmware link.bin\"\n");
    device.running("firmware/x", "x");
    symlink("init", device.at(RUNNING).join("link.bin")).unwrap();
    assert_eq!((device.judged(u64::MAX, false).0.len(), device.carried().len()), (0, 0));
    device.running("own.dtb", &"x".repeat(9 << 20));
    fs::remove_file(device.at("new/own.dtb")).unwrap();
    assert_eq!(device.judged(u64::MAX, false).0.len(), 1, "no device tree is so large");
}

#[test]
fn a_missing_name_refuses_only_where_the_board_says_so() {
    for (conf, refused, warned) in [
        ("", 0, 1),
        ("DEVICE_TREE_REQUIRED=1\n", 1, 0),
        ("DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_KEYS=fdtfile\n", 0, 1),
        ("DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_PLACE=boot\n", 1, 0),
        ("DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_PLACE=boot-first\n", 1, 0),
    ] {
        let device = Device::new(conf, "custom_fdt_file=own.dtb\n");
        let (problems, warnings) = device.judged(u64::MAX, false);
        assert_eq!((problems.len(), warnings), (refused, warned), "{conf}");
        let is_there = |what: &str| {
            assert_eq!(device.judged(u64::MAX, false), (vec![], 0), "{conf}: {what}");
        };
        let on_boot = conf.contains("PLACE");
        if on_boot {
            device.put("mnt/boot/own.dtb", "x");
            is_there("on the boot partition");
            fs::remove_file(device.at("mnt/boot/own.dtb")).unwrap();
            device.put("resin-boot/own.dtb", "x");
            is_there("among the release's boot files");
            fs::remove_file(device.at("resin-boot/own.dtb")).unwrap();
        } else {
            device.put("mnt/boot/own.dtb", "x");
            assert_eq!(
                device.judged(u64::MAX, false).0.len(),
                refused,
                "{conf}: the loader does not look there"
            );
        }
        if !conf.contains("PLACE=boot\n") {
            device.running("own.dtb", "x");
            is_there("in the running release");
        }
    }
    let device = Device::new("DEVICE_TREE_REQUIRED=1\n", "custom_fdt_file=../own.dtb\n");
    let refused = "../own.dtb device-tree-missing".to_owned();
    assert_eq!(device.judged(u64::MAX, false), (vec![refused], 0), "not a plain path");
    let device = Device::new("", "custom_fdt_file=../own.dtb\n");
    assert_eq!(device.judged(u64::MAX, false), (vec![], 1), "not a plain path");

    // A board that knows two settings loads one of the trees.
    let conf = "DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_KEYS=\"custom_fdt_file fdt_file\"\n";
    let device = Device::new(conf, "custom_fdt_file=stale.dtb\nfdt_file=own.dtb\n");
    assert_eq!(device.judged(u64::MAX, false).0.len(), 2);
    device.running("own.dtb", "x");
    assert_eq!(device.judged(u64::MAX, false), (vec![], 1));
}

#[test]
fn a_tree_in_use_is_never_lost_in_silence() {
    let device = Device::new("CARRY_BOOT=cal.bin\n", "custom_fdt_file=own.dtb\nfdt_file=other.dtb\n");
    for name in ["own.dtb", "other.dtb", "cal.bin"] {
        device.running(name, &"x".repeat(5000));
    }
    let own = || "own.dtb device-tree-missing".to_owned();
    // With secure boot the bootloader cannot have read it.
    assert_eq!(device.judged(u64::MAX, true), (vec![], 3));
    assert!(device.read(true).carry(&device.at(NEW)).carried.is_empty());
    assert_eq!(device.judged(0, false), (vec![own(), "cal.bin slot-full".into()], 1));
    assert_eq!(device.judged(2 * (12 << 10), false), (vec![], 1), "what is needed has the space first");
    assert_eq!(device.judged(3 * (12 << 10), false), (vec![], 0));
    // The release has it: nothing is lost.
    device.new_has("own.dtb", "the release's");
    assert_eq!(device.judged(u64::MAX, true).0, [""; 0]);
}

#[test]
fn a_damaged_tree_is_refused_wherever_it_is() {
    for (place, in_time) in [("mnt/boot", true), (RUNNING, true), (NEW, false)] {
        for name in ["own.dtb", "over.dtbo"] {
            let conf = if place == "mnt/boot" { "DEVICE_TREE_PLACE=boot-first\n" } else { "" };
            let device =
                Device::new(conf, "custom_fdt_file=own.dtb\noverlay_files=over.dtbo\nfdtfile=x.dtb\n");
            for file in ["own.dtb", "over.dtbo", "x.dtb"] {
                device.put(&format!("{place}/{file}"), "");
            }
            fs::write(device.at(&format!("{place}/{name}")), &LEAST[..60]).unwrap();
            // What does not count, the bootloader does not read.
            fs::write(device.at(&format!("{place}/x.dtb")), "").unwrap();
            let refused = vec![format!("{name} device-tree-invalid")];
            assert_eq!(
                device.judged(u64::MAX, false).0,
                if in_time { refused.clone() } else { vec![] },
                "{place}"
            );
            // What is on the boot partition, the hooks may still repair.
            let later = if place == "mnt/boot" { vec![] } else { refused };
            let problems = device.read(false).carry(&device.at(NEW)).problems;
            let problems = problems.iter().map(|e| format!("{} {}", e.subject().unwrap(), e.code()));
            assert_eq!(problems.collect::<Vec<_>>(), later, "{place}");
            // A rollback is never refused.
            assert!(device.read(false).add_only(&device.at(NEW)).problems.is_empty());
        }
    }
}

/// The device runs with it, and the cloud cannot force an update. The board's own line counts more.
#[test]
fn a_damaged_tree_with_which_the_device_has_booted_is_a_warning() {
    for (place, conf) in [(RUNNING, ""), ("mnt/boot", "DEVICE_TREE_PLACE=boot-first\n")] {
        let device = Device::new(conf, "custom_fdt_file=own.dtb\n");
        fs::create_dir_all(device.at("mnt/boot")).unwrap();
        fs::write(device.at(&format!("{place}/own.dtb")), &LEAST[..60]).unwrap();
        let invalid = || vec!["own.dtb device-tree-invalid".to_owned()];
        device.put("proc/stat", "cpu 1\nbtime 1000\n");
        assert_eq!(device.judged(u64::MAX, false), (invalid(), 0), "it has changed since");
        device.put("proc/stat", "cpu 1\nbtime 99999999999\n");
        assert_eq!(device.judged(u64::MAX, false), (vec![], 1), "{place}");
        assert!(device.read(false).carry(&device.at(NEW)).problems.is_empty(), "{place}");
        drop(fs::remove_file(device.at(NEW).join("own.dtb")));
        device.put("etc/copal/update.conf", &format!("{conf}DEVICE_TREE_REQUIRED=1\n"));
        assert_eq!(device.judged(u64::MAX, false), (invalid(), 0), "{place}");
        // With its own file, the release repairs the boot partition.
        device.put("resin-boot/own.dtb", "");
        let left = if place == "mnt/boot" { vec![] } else { invalid() };
        assert_eq!(device.judged(u64::MAX, false).0, left, "{place}");
        device.put("mnt/boot/copal/keep", "own.dtb\n");
        assert_eq!(device.judged(u64::MAX, false).0, invalid(), "{place}");
    }
}

/// The bootloader finds the file through the link.
#[test]
fn a_folder_that_is_a_link_in_the_release_ends_no_update() {
    let device = Device::new("CARRY_BOOT=fw/a.bin\n", "custom_fdt_file=dtb/own.dtb\n");
    for name in ["dtb/own.dtb", "fw/a.bin"] {
        device.running(name, "running");
        device.new_has(&format!("real/{name}"), "new");
    }
    device.new_has("fw/a.bin/x", "a folder of that name");
    symlink("real/dtb", device.at(NEW).join("dtb")).unwrap();
    let Outcome { carried, problems } = device.read(false).carry(&device.at(NEW));
    assert!(carried.is_empty() && problems.is_empty(), "{carried:?} {problems:?}");
    assert_eq!(device.text("dtb/own.dtb"), "new");
}
