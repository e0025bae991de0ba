//! Files with rules of their own: logo, config.json, what says which root boots; copies of the hook under other names.

use std::io;

use copal::boot_files::deploy::Purpose;
use copal::boot_state::envblock::EnvBlock;
use copal::sys::crash_point;

use super::support::{Device, md5sum_is_content};
use crate::kit::files::tree;

const LOGO: (&str, &str) = ("splash/balena-logo.png", "new logo");

/// The fingerprint line of `text`.
fn line(text: &str, path: &str) -> String {
    use md5::{Digest, Md5};
    let hex: String = Md5::digest(text).iter().map(|b| format!("{b:02x}")).collect();
    format!("{hex}  {path}\n")
}

#[test]
fn a_logo_of_the_old_name_is_kept_if_it_is_the_owners() {
    for (was, now) in [("of the image", "new logo"), ("the owner's", "the owner's")] {
        let device = Device::new(&[("splash/resin-logo.png", was)], &[LOGO, ("a", "a")]);
        // A name that contains the other one must not count.
        let text = line(was, "x/splash/resin-logo.png") + &line("of the image", "splash/resin-logo.png");
        std::fs::write(device.boot().join("balenaos.fingerprint"), text).unwrap();
        for _ in 0..2 {
            device.update().unwrap();
            let wanted = tree(&[("a", "a"), ("splash/", ""), ("splash/balena-logo.png", now)]);
            assert_eq!(device.see(), wanted, "{was}");
        }
    }
}

#[test]
fn a_release_that_has_the_logo_of_the_old_name_keeps_it() {
    let old = ("splash/resin-logo.png", "of the release");
    for (was, now) in [("of the image", "new logo"), ("the owner's", "the owner's")] {
        let device = Device::new(&[("splash/resin-logo.png", was)], &[LOGO, old]);
        std::fs::write(device.boot().join("balenaos.fingerprint"), line("of the image", old.0)).unwrap();
        device.undo().unwrap();
        assert_eq!(device.see(), tree(&[("splash/", ""), ("splash/balena-logo.png", now), old]), "{was}");
    }
}

#[test]
fn a_logo_without_a_record_is_the_owners() {
    let device = Device::new(&[("splash/resin-logo.png", "which?")], &[LOGO]);
    device.update().unwrap();
    assert_eq!(device.see(), tree(&[("splash/", ""), ("splash/balena-logo.png", "which?")]));
}

#[test]
fn a_logo_of_the_new_name_is_not_touched() {
    let device = Device::new(&[("a", "a")], &[LOGO]);
    device.update().unwrap();
    assert_eq!(device.see(), tree(&[("a", "a")]), "it is not deployed, not even when it is missing");
}

/// A release in the active root, as the engine keeps it.
fn running(device: &mut Device, os_release: &str) {
    let slot = "/mnt/sysroot/active";
    let m = &mut device.machine;
    m.folder(&format!("{slot}/balena/volumes/v/_data"));
    m.link(&format!("{slot}/hostapps/c0ffee/boot"), "../../balena/volumes/v/_data");
    m.link(&format!("{slot}/current"), "hostapps/c0ffee");
    m.file(&format!("{slot}/balena/image/overlay2/layerdb/mounts/c0ffee/mount-id"), "top");
    m.file(&format!("{slot}/balena/overlay2/top/diff/etc/os-release"), os_release);
    // Another one lies about; only the current one counts.
    m.file(&format!("{slot}/balena/overlay2/other/diff/etc/os-release"), "VARIANT=\"Development\"\n");
}

#[test]
fn a_legacy_development_image_stays_one() {
    const OWN: &str = "{\"b\":1.50,\"a\":[ 1,2],\"big\":12345678901234567890.10}";
    let set = "{\n  \"b\": 1.50,\n  \"a\": [ 1,2],\n  \"big\": 12345678901234567890.10,\n  \"developmentMode\": true\n}\n";
    let development = "VARIANT=\"Development\"\n";
    for (os_release, own, release_has_it, wanted) in [
        (development, OWN, true, set),
        (development, OWN, false, OWN),
        ("VARIANT=\"Production\"\n", OWN, true, OWN),
        (development, "{\"developmentMode\":false}", true, "{\"developmentMode\":false}"),
        (development, "{\"developmentMode\":null}", true, "{\n  \"developmentMode\": true\n}\n"),
        (development, "{\"damaged", true, "{\"damaged"),
    ] {
        let release: &[_] = if release_has_it { &[("config.json", "{}")] } else { &[("a", "a")] };
        let mut device = Device::new(&[("config.json", own)], release);
        running(&mut device, os_release);
        device.update().unwrap();
        let now = std::fs::read_to_string(device.boot().join("config.json")).unwrap();
        assert_eq!(now, wanted, "{os_release} {own} {release_has_it}");
    }
}

/// It would select root A, for a moment or, with a cut in it, for good.
#[test]
fn what_says_which_root_boots_is_not_a_boot_file() {
    const IMAGE: &str = "resin_root_part=2\nupgrade_available=0\nbootcount=0\n";
    const OWN: &str = "resin_root_part=3\nupgrade_available=0\nown=1\n";
    let release = [("EFI/BOOT/grubenv", IMAGE), ("EFI/BOOT/grub.cfg", "new")];
    for (own, wanted, after_undo) in [
        (Some(OWN), OWN, OWN),
        (None, IMAGE, IMAGE),
        // Of an image that could not roll back yet.
        (Some("# nothing\n"), IMAGE, "# nothing\n"),
    ] {
        for (during_update, wanted) in [(true, wanted), (false, after_undo)] {
            let device = Device::new(&[("EFI/BOOT/grub.cfg", "old")], &release);
            let file = device.boot().join("EFI/BOOT/grubenv");
            if let Some(own) = own {
                std::fs::write(&file, own).unwrap();
            }
            device.hook("1-bootfiles", during_update).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), wanted, "{own:?} {during_update}");
            assert_eq!(device.see()["EFI/BOOT/grub.cfg"], "new");
        }
    }
}

/// Without a selection, a `grub.cfg` that reads it takes root B, and the release's own selects root A.
#[test]
fn a_selection_that_is_missing_comes_first_names_what_boots_now_and_stays() {
    let mut shipped =
        b"# GRUB Environment Block\nbootcount=0\nresin_root_part=7\nupgrade_available=0\n".to_vec();
    shipped.resize(1024, b'#');
    let shipped = String::from_utf8(shipped).unwrap();
    let release =
        [("grub/grub.cfg", "resin_root_part"), ("grub/grubenv", shipped.as_str()), ("vmlinuz", "new")];
    for (stops_at, also_removals) in [("grub.cfg", true), ("vmlinuz", false), ("vmlinuz", true)] {
        let device = Device::new(&[("grub/grub.cfg", "resin-rootA"), ("grub/grubenv", "# none\n")], &release);
        std::fs::remove_file(device.boot().join("grub/grubenv")).unwrap();
        let mut request = device.request(Purpose::Update);
        request.boots_now = Some(2);
        let boot = device.boot();
        let armed = crash_point::arm(move |step, path| {
            let stops = step.starts_with("rename") && path.ends_with(stops_at)
                || also_removals && step == "unlink" && path.starts_with(&boot);
            if stops { Err(io::Error::other("as ordered")) } else { Ok(()) }
        });
        request.deploy().unwrap_err();
        drop(armed);
        let seen = device.see();
        let block = EnvBlock::parse(seen["grub/grubenv"].as_bytes()).unwrap();
        assert_eq!(block.get("resin_root_part"), Some(&b"2"[..]), "{stops_at}");
        assert_eq!(block.get("upgrade_available"), Some(&b"0"[..]));
    }
    // The hook itself knows what runs, in both directions.
    for during_update in [true, false] {
        let device = Device::new(&[("grub/grub.cfg", "resin-rootA")], &release);
        device.hook("1-bootfiles", during_update).unwrap();
        let block = EnvBlock::parse(device.see()["grub/grubenv"].as_bytes()).unwrap();
        assert_eq!(block.get("resin_root_part"), Some(&b"2"[..]), "{during_update}");
    }
}

#[test]
fn any_other_name_means_the_boot_partition_that_is_not_encrypted() {
    for name in ["2-rpifiles", "2-imxfiles"] {
        let mut device = Device::new(&[("zImage", "encrypted")], &[("zImage", "new")]);
        device.hook(name, true).unwrap();
        assert_eq!(device.see(), tree(&[("zImage", "new")]), "without encryption there is only one");

        std::fs::write(device.boot().join("zImage"), "encrypted").unwrap();
        device.machine.folder("/mnt/rpi").mount("179:5", "/mnt/rpi", "vfat", "/dev/mmcblk0p5", "rw");
        device.hook(name, true).unwrap();
        assert_eq!(device.see(), tree(&[("zImage", "encrypted")]));
        assert_eq!(std::fs::read_to_string(device.at("/mnt/rpi/zImage")).unwrap(), "new");
        assert!(md5sum_is_content(&device.at("/mnt/rpi")));
        device.update().unwrap();
        assert_eq!(device.see(), tree(&[("zImage", "new")]));
    }
}

const KEEP: (&str, &str) = ("copal/keep", "# mine\noverlays/OWN.dtbo\nnone.dtbo\nzImage\n../x\n");

#[test]
fn a_pinned_file_outlives_update_and_rollback() {
    let owner = [("overlays/own.dtbo", "the owner's"), ("overlays/b.dtbo", "old b"), ("zImage", "old"), KEEP];
    let device = Device::new(&owner, &[]);
    let new =
        [("overlays/own.dtbo", "new"), ("overlays/b.dtbo", "new b"), ("none.dtbo", "new"), ("zImage", "new")];
    let old = [("overlays/own.dtbo", "old"), ("overlays/b.dtbo", "old b"), ("zImage", "old")];
    for (release, update, b, kernel) in [(&new[..], true, "new b", "new"), (&old, false, "old b", "old")] {
        device.release(release);
        for _ in 0..2 {
            device.hook("1-bootfiles", update).unwrap();
            let wanted = [
                KEEP,
                ("copal/", ""),
                ("overlays/", ""),
                ("overlays/own.dtbo", "the owner's"),
                ("overlays/b.dtbo", b),
                // A pin protects what is there, and hides nothing of a release.
                ("none.dtbo", "new"),
                // A pin on a kernel does not count.
                ("zImage", kernel),
            ];
            assert_eq!(device.see(), tree(&wanted));
        }
        // The owner changes the list at any time.
        std::fs::write(device.boot().join(KEEP.0), format!("{}other\n", KEEP.1)).unwrap();
        assert!(md5sum_is_content(&device.boot()));
        std::fs::write(device.boot().join(KEEP.0), KEEP.1).unwrap();
    }
    std::fs::remove_file(device.boot().join(KEEP.0)).unwrap();
    device.undo().unwrap();
    assert_eq!(
        device.see()["overlays/own.dtbo"],
        tree(&old)["overlays/own.dtbo"],
        "without a pin the release's"
    );
}

#[test]
fn with_secure_boot_there_are_no_pins() {
    let device = Device::encrypted(
        &[("own.bin", "the owner's"), ("copal/keep", "own.bin\n")],
        &[("own.bin", "signed")],
    );
    device.update().unwrap();
    assert_eq!(device.see()["own.bin"], tree(&[("own.bin", "signed")])["own.bin"]);
}
