//! Encrypted systems: of two loaders the one for secure boot, and `EFI` on a partition of its own.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::rc::Rc;

use copal::boot_files::deploy::Purpose;
use copal::error::Code;
use copal::sys::crash_point;

use super::support::{Device, stamps};
use crate::kit::disk::tmpfs;
use crate::kit::files::{see, tree};
use crate::kit::needs::{can_run, needs};

const RELEASE: &[(&str, &str)] = &[
    ("EFI/BOOT/bootx64.efi", "plain loader"),
    ("EFI/BOOT/bootx64.efi.secureboot", "secure loader"),
    ("EFI/BOOT/grub-luks.cfg", "luks config"),
    ("EFI/BOOT/grub-luks.cfg.sig", "luks signature"),
    ("EFI/BOOT/grub.cfg", "plain config"),
    ("EFI/BOOT/grub.cfg.sig", "plain signature"),
    ("splash/frame.png", "frame"),
];

const SECURE: &[(&str, &str)] = &[
    ("EFI/", ""),
    ("EFI/BOOT/", ""),
    ("EFI/BOOT/bootx64.efi", "secure loader"),
    ("EFI/BOOT/grub.cfg", "luks config"),
    ("EFI/BOOT/grub.cfg.sig", "luks signature"),
];

#[test]
fn the_secure_variant_is_deployed_under_the_final_name_and_never_the_plain_one() {
    for boot in [&[][..], &[("EFI/BOOT/bootx64.efi", "old loader"), ("EFI/BOOT/grub.cfg", "old config")]] {
        let device = Device::encrypted(boot, RELEASE);
        // What each loader and configuration file holds before every call.
        let all: Rc<RefCell<BTreeSet<String>>> = Rc::default();
        let (held, boot) = (all.clone(), device.boot());
        let armed = crash_point::arm(move |_, _| {
            let is_one =
                |path: &str| [".efi", "grub.cfg", "grub.cfg.sig"].iter().any(|end| path.ends_with(end));
            held.borrow_mut().extend(see(&boot).into_iter().filter(|(path, _)| is_one(path)).map(|(_, c)| c));
            Ok(())
        });
        device.deploy(Purpose::Update).unwrap();
        drop(armed);
        let seen = all.take();
        assert!(seen.contains("secure loader") && seen.iter().all(|s| !s.contains("plain")), "{seen:?}");
        let mut wanted = tree(SECURE);
        wanted.extend(tree(&[("splash/", ""), ("splash/frame.png", "frame")]));
        assert_eq!(device.see(), wanted);
    }
}

/// GRUB takes no configuration with the signature of another.
#[test]
fn the_configuration_has_its_own_signature_at_every_instant() {
    let old = [("EFI/BOOT/grub.cfg", "luks config, old"), ("EFI/BOOT/grub.cfg.sig", "luks signature, old")];
    for purpose in [Purpose::Update, Purpose::Undo] {
        let device = Device::encrypted(&old, RELEASE);
        let pairs: Rc<RefCell<BTreeSet<bool>>> = Rc::default();
        let (seen, boot) = (pairs.clone(), device.boot());
        let armed = crash_point::arm(move |_, _| {
            let is_old = ["grub.cfg", "grub.cfg.sig"].map(|name| {
                std::fs::read_to_string(boot.join("EFI/BOOT").join(name)).unwrap().ends_with("old")
            });
            assert_eq!(is_old[0], is_old[1]);
            seen.borrow_mut().insert(is_old[0]);
            Ok(())
        });
        device.deploy(purpose).unwrap();
        drop(armed);
        assert_eq!(pairs.take(), BTreeSet::from([false, true]), "before and after");
        assert_eq!(device.see()["EFI/BOOT/grub.cfg.sig"], "luks signature");
    }
}

/// Where each loader needs a policy of the TPM: `0-signed-update` has not put that of this release in place.
#[test]
fn a_loader_that_another_hook_did_not_put_in_place_stays_with_its_configuration() {
    let old = [
        ("EFI/BOOT/bootx64.efi", "another loader"),
        ("EFI/BOOT/grub.cfg", "its config"),
        ("EFI/BOOT/grub.cfg.sig", "its signature"),
    ];
    for (flags, purpose, stays) in [
        ([1, 0], Purpose::Undo, true),
        ([1, 0], Purpose::Update, true),
        ([0, 0], Purpose::Undo, false),
        ([1, 1], Purpose::Undo, false),
    ] {
        let device = Device::encrypted(&old, RELEASE);
        let variables = device.at("/sys/firmware/efi/efivars");
        std::fs::create_dir_all(&variables).unwrap();
        for (name, flag) in ["SecureBoot", "SetupMode"].into_iter().zip(flags) {
            let variable = variables.join(format!("{name}-8be4df61-93ca-11d2-aa0d-00e098032b8c"));
            std::fs::write(variable, [6, 0, 0, 0, flag]).unwrap();
        }
        device.deploy(purpose).unwrap();
        let seen = device.see();
        assert_eq!(seen["splash/frame.png"], "frame", "{flags:?}");
        let wanted = if stays { &old[..] } else { &SECURE[2..] };
        for (name, content) in wanted {
            assert_eq!(seen[*name], *content, "{flags:?}, {purpose:?}");
        }
        // Once the hook has done its work, the configuration follows.
        std::fs::write(device.boot().join("EFI/BOOT/bootx64.efi"), "secure loader").unwrap();
        device.deploy(purpose).unwrap();
        assert_eq!(device.see()["EFI/BOOT/grub.cfg"], "luks config", "{flags:?}, {purpose:?}");
    }
}

#[test]
fn a_plain_system_gets_the_plain_one_alone() {
    let device = Device::new(&[], RELEASE);
    device.update().unwrap();
    let seen = device.see();
    assert_eq!(seen["EFI/BOOT/bootx64.efi"], "plain loader");
    assert_eq!(seen["EFI/BOOT/grub.cfg.sig"], "plain signature");
    assert!(seen.keys().all(|k| !k.contains("secureboot") && !k.contains("luks")), "{seen:?}");
}

/// A shell release deploys both and renames one later; a cut in between leaves it, and a later hook would take it for newer.
#[test]
fn variants_left_by_a_shell_release_go() {
    let boot = [("EFI/BOOT/bootx64.efi.secureboot", "stale"), ("EFI/BOOT/grub-luks.cfg.sig", "stale")];
    let device = Device::encrypted(&boot, &RELEASE[..6]);
    device.update().unwrap();
    assert_eq!(device.see(), tree(SECURE));
}

#[test]
fn a_release_without_the_secure_variant_is_refused() {
    for missing in [1, 3] {
        let mut release = RELEASE.to_vec();
        release.remove(missing);
        let boot = [("EFI/BOOT/bootx64.efi", "old loader"), ("EFI/BOOT/grub.cfg.sig", "old signature")];
        let device = Device::encrypted(&boot, &release);
        let before = stamps(&device.boot());
        assert_eq!(device.update().unwrap_err().code(), Code::BootFilesInvalid);
        assert_eq!(stamps(&device.boot()), before);
        // An undo leaves that one alone, and says so at the end.
        assert_eq!(device.undo().unwrap_err().code(), Code::BootFilesInvalid);
        let seen = device.see();
        assert_eq!(seen["splash/frame.png"], "frame");
        assert!(seen.values().all(|c| !c.starts_with("plain") || missing == 3), "{seen:?}");
        let kept = if missing == 1 { "EFI/BOOT/bootx64.efi" } else { "EFI/BOOT/grub.cfg.sig" };
        assert!(seen[kept].starts_with("old"), "{seen:?}");
    }
}

#[test]
fn the_link_to_the_other_partition_is_followed_and_its_space_counted() {
    needs!(can_run);
    let mut device = Device::encrypted(&[], RELEASE);
    symlink("../efi/EFI", device.boot().join("EFI")).unwrap();
    // Nothing is mounted there: the link leads out.
    assert_eq!(device.update().unwrap_err().code(), Code::BootPathEscapes);
    device.machine.mount("8:1", "/mnt/efi", "vfat", "/dev/sda1", "rw");
    for (kib, fits) in [(300, false), (1200, true)] {
        let _efi = tmpfs(&device.at("/mnt/efi"), kib);
        std::fs::create_dir(device.at("/mnt/efi/EFI")).unwrap();
        let result = device.update();
        if !fits {
            assert_eq!(result.unwrap_err().code(), Code::BootPartitionFull);
            assert_eq!(see(&device.at("/mnt/efi")), tree(&[("EFI/", "")]));
            continue;
        }
        result.unwrap();
        assert_eq!(see(&device.at("/mnt/efi")), tree(SECURE));
        assert_eq!(
            device.see(),
            tree(&[("EFI", "-> ../efi/EFI"), ("splash/", ""), ("splash/frame.png", "frame")])
        );
        let text = std::fs::read_to_string(device.boot().join("balenaos.fingerprint")).unwrap();
        assert_eq!(text.lines().count(), 1, "each partition has its own: {text}");
    }
}
