//! Releases for a device that starts signed programs only. The two programs have headers and nothing else; GnuPG has signed them, as in
//! `tests/image/openpgp.rs`.

use std::collections::BTreeMap;

use copal::measurements::Measured;
use copal::uefi::authenticode::Program;
use copal::uefi::signature_list::of_hashes;
use copal::uefi::{Guid, authenticated};
use copal::unlock::release;

const LOADER: &[u8] = include_bytes!("release/loader.efi");
const KERNEL: &[u8] = include_bytes!("release/kernel.efi");
const OTHER_KERNEL_SIGNATURE: &[u8] = include_bytes!("release/kernel.other.sig");
const KEYS: &str = "resin-boot/balena-keys/";

type Files = BTreeMap<String, Vec<u8>>;

fn list(programs: &[&[u8]]) -> Vec<u8> {
    let digests: Vec<[u8; 32]> = programs.iter().map(|file| Program::parse(file).unwrap().digest).collect();
    of_hashes(&digests, Guid::GLOBAL)
}

/// One that adds its programs to the firmware's `db`.
fn signed() -> Files {
    let added = list(&[LOADER, KERNEL]);
    let auth = [&authenticated::unsigned(std::time::SystemTime::now())[..], &added].concat();
    let files: [(&str, &[u8]); 8] = [
        ("resin-boot/EFI/BOOT/bootx64.efi.secureboot", LOADER),
        ("resin-boot/EFI/BOOT/grub-luks.cfg", include_bytes!("../image/openpgp/grub.cfg")),
        ("resin-boot/EFI/BOOT/grub-luks.cfg.sig", include_bytes!("../image/openpgp/sha512.sig")),
        ("boot/bzImage", KERNEL),
        ("boot/bzImage.sig", include_bytes!("release/kernel.efi.sig")),
        ("resin-boot/balena-keys/grub.gpg", include_bytes!("../image/openpgp/rsa2048.gpg")),
        ("resin-boot/balena-keys/db.esl", &added),
        ("resin-boot/balena-keys/db.auth", &auth),
    ];
    files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).collect()
}

fn firmware(db: &[&[u8]], dbx: &[&[u8]]) -> Measured {
    Measured { secure_boot: vec![1], db: list(db), dbx: list(dbx), ..Measured::default() }
}

fn check(now: &Measured, files: &Files) -> Result<(), String> {
    let done = release::check(now, None, &|name| Ok(files.get(name).cloned()));
    done.map_err(|e| {
        assert_eq!(e.code().as_str(), "release-not-allowed");
        e.message()
    })
}

#[test]
fn a_release_that_the_device_starts_is_taken() {
    let other = [LOADER, &[1; 8]].concat();
    check(&firmware(&[&other], &[]), &signed()).unwrap();
    // The firmware has the entries already, as after an update to the same release: nothing has to be appended.
    let mut files = signed();
    files.remove(&format!("{KEYS}db.auth"));
    check(&firmware(&[LOADER, KERNEL], &[]), &files).unwrap();
    files.remove(&format!("{KEYS}db.esl"));
    check(&firmware(&[LOADER, KERNEL], &[]), &files).unwrap();
    // Without its key, what the loader checks cannot be checked.
    files.remove(&format!("{KEYS}grub.gpg"));
    check(&firmware(&[LOADER, KERNEL], &[]), &files).unwrap();
}

#[test]
fn a_release_that_the_device_would_not_start_is_refused() {
    let now = firmware(&[], &[]);
    let refused = |now: &Measured, words: &str, change: &dyn Fn(&mut Files)| {
        let mut files = signed();
        change(&mut files);
        let said = check(now, &files).unwrap_err();
        assert!(said.contains(words), "{words}: {said}");
    };
    let names: Vec<String> = signed().into_keys().filter(|name| !name.starts_with(KEYS)).collect();
    assert_eq!(names.len(), 5);
    for name in names {
        refused(&now, &format!("{name}: the release does not have it"), &|files| drop(files.remove(&name)));
    }
    let put = |name: &'static str, bytes: &'static [u8], words: &str| {
        refused(&now, words, &|files| drop(files.insert(name.to_owned(), bytes.to_vec())));
    };
    put("boot/bzImage.sig", OTHER_KERNEL_SIGNATURE, "boot/bzImage: its signature is not by the key");
    put("boot/bzImage.sig", b"signed", "bzImage.sig: it is no file of OpenPGP");
    put("resin-boot/EFI/BOOT/grub-luks.cfg", b"another", "grub-luks.cfg: its signature");
    put("resin-boot/balena-keys/grub.gpg", b"no key", "grub.gpg: it is no file of OpenPGP");
    put("boot/bzImage", b"no program", "bzImage: it is not a UEFI program");
    put("resin-boot/balena-keys/db.esl", b"no list", "db.esl");
    put("resin-boot/balena-keys/db.auth", b"short", "db.auth: it is shorter than its header");
    let longer = [KERNEL, &[0; 3]].concat();
    refused(&now, "not a multiple of 8", &|files| drop(files.insert("boot/bzImage".into(), longer.clone())));
    refused(&now, "db.auth: the release does not have it", &|files| {
        drop(files.remove(&format!("{KEYS}db.auth")));
    });
    let empty = authenticated::unsigned(std::time::SystemTime::now());
    refused(&now, "does not have the entries", &|files| {
        drop(files.insert(format!("{KEYS}db.auth"), empty.clone()));
    });
    refused(&now, "would not start it", &|files| {
        files.remove(&format!("{KEYS}db.esl"));
    });
    let read = |name: &str| {
        Ok(signed().remove(name).filter(|_| name.ends_with("grub.gpg") || name == "boot/bzImage"))
    };
    let all: Vec<String> =
        release::reasons(&now, None, &read).iter().map(copal::error::Error::message).collect();
    assert_eq!(all.len(), 5, "each reason: {all:#?}");
    let unreadable = |_: &str| Err(std::io::ErrorKind::PermissionDenied.into());
    let all = release::reasons(&now, None, &unreadable);
    assert_eq!(all.len(), release::files().len(), "each once: {all:#?}");
    refused(&firmware(&[], &[KERNEL]), "bzImage: the firmware would not start it", &|_| {});
    refused(&firmware(&[], &[LOADER]), "bootx64.efi.secureboot: the firmware would not start it", &|_| {});
}

#[test]
fn another_key_of_the_loader_is_a_reason_of_its_own() {
    let now = firmware(&[], &[]);
    let read = |name: &str| Ok(signed().remove(name));
    let same = include_bytes!("../image/openpgp/rsa2048.gpg");
    assert_eq!(release::reasons(&now, Some(same), &read), []);
    let other = include_bytes!("../image/openpgp/rsa4096.gpg");
    let reasons = release::reasons(&now, Some(other), &read);
    let codes: Vec<&str> = reasons.iter().map(|e| e.code().as_str()).collect();
    assert_eq!(codes, ["loader-key-changed"]);
    assert!(reasons[0].hint().contains("--accept-loader-key"), "{}", reasons[0]);
    // What the new loader does not take either has its own reason.
    let mut files = signed();
    files.insert("boot/bzImage.sig".to_owned(), OTHER_KERNEL_SIGNATURE.to_vec());
    let codes: Vec<&str> = release::reasons(&now, Some(same), &|name| Ok(files.get(name).cloned()))
        .iter()
        .map(|e| e.code().as_str())
        .collect();
    assert_eq!(codes, ["release-not-allowed", "loader-key-changed"]);
}
