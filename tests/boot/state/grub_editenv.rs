//! Both ways between copal and the real `grub-editenv`.

use std::path::Path;
use std::process::Command;

use copal::boot_state::envblock::EnvBlock;
use copal::boot_state::{self, Named};
use copal::slot::Slot;

use super::support::{Device, root, state};

fn editenv(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("grub-editenv").arg(file).args(arguments).output();
    let output = output.expect("grub-editenv of grub-common is one of the tools of the tests");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_grub_makes_copal_changes_in_place() {
    for name in ["bootenv", "EFI/BOOT/grubenv"] {
        let device = Device::new(&[(name, b"")]);
        let file = device.at(name);
        std::fs::remove_file(&file).unwrap();
        editenv(&file, &["create"]);
        let start = if name == "bootenv" { "resin_root_part=A" } else { "resin_root_part=2" };
        editenv(&file, &["set", "first=1", start, "upgrade_available=0", "odd=a\\b\nc", "last=z"]);
        let inode = inode(&file);
        let backend = boot_state::detect(&device.paths).unwrap();
        backend.set(&root(Slot::B, 3), true).unwrap();
        assert_eq!(self::inode(&file), inode, "it was replaced");
        let new = if name == "bootenv" { "resin_root_part=B" } else { "resin_root_part=3" };
        let wanted = format!("first=1\n{new}\nupgrade_available=1\nodd=a\\b\nc\nlast=z\nbootcount=0\n");
        assert_eq!(editenv(&file, &["list"]), wanted);
        assert_eq!(device.read(name).len(), 1024);

        // The bootloader counts; the count is cleared.
        editenv(&file, &["set", "bootcount=2"]);
        let named = if name == "bootenv" { Named::Slot(Slot::B) } else { Named::Index(3) };
        assert_eq!(backend.read().unwrap(), state(named.clone(), 2, true));
        backend.clear_bootcount().unwrap();
        assert_eq!(backend.read().unwrap(), state(named, 0, true));
        editenv(&file, &["unset", "odd"]);
        let wanted = wanted.replace("odd=a\\b\nc\n", "");
        assert_eq!(editenv(&file, &["list"]), wanted);
    }
}

fn inode(file: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(file).unwrap())
}

#[test]
fn what_copal_makes_grub_reads_and_changes() {
    let device = Device::new(&[]);
    let file = device.at("bootenv");
    let backend = boot_state::balena(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Slot(Slot::A), 0, false));
    backend.set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(editenv(&file, &["list"]), "bootcount=0\nresin_root_part=B\nupgrade_available=1\n");
    editenv(&file, &["set", "kernel_override_abi=12", "resin_root_part=A"]);
    let read = EnvBlock::parse(&device.read("bootenv")).unwrap();
    assert_eq!(read.get("kernel_override_abi"), Some(&b"12"[..]));
    assert_eq!(backend.read().unwrap(), state(Named::Slot(Slot::A), 0, true));
    editenv(&file, &["unset", "kernel_override_abi"]);
    assert_eq!(editenv(&file, &["list"]), "bootcount=0\nresin_root_part=A\nupgrade_available=1\n");
}

/// A block in the layout with a sector of its own for the boot decision is like any other to GRUB.
#[test]
fn the_filler_does_not_disturb_grub() {
    let device = Device::new(&[]);
    let file = device.at("bootenv");
    let mut block = EnvBlock::default();
    assert!(block.set("abi", &[b'x'; 470]) && block.set("odd", b"a\nb\\"));
    for (key, value) in [("resin_root_part", "A"), ("bootcount", "1"), ("upgrade_available", "0")] {
        assert!(block.set(key, value.as_bytes()));
    }
    std::fs::write(&file, block.print().unwrap()).unwrap();
    let list = editenv(&file, &["list"]);
    assert_eq!(list.lines().count(), 6, "{list}");
    editenv(&file, &["set", "resin_root_part=12", "added=1"]);
    editenv(&file, &["unset", "abi"]);
    let read = EnvBlock::parse(&device.read("bootenv")).unwrap();
    assert_eq!(read.get("resin_root_part"), Some(&b"12"[..]));
    assert_eq!(read.get("odd"), Some(&b"a\nb\\"[..]));
    assert_eq!((read.get("added"), read.get("abi")), (Some(&b"1"[..]), None));
}

/// Whatever mixture of values: what one writes the other lists.
#[test]
fn many_values_both_ways() {
    let device = Device::new(&[]);
    let file = device.at("bootenv");
    let mut random = fastrand::Rng::with_seed(7);
    editenv(&file, &["create"]);
    for round in 0..60 {
        let key = format!("key{}", random.u8(0..6));
        let letters = ['a', '\\', '\n', '#', '=', ' ', 'z'];
        let value: String = (0..random.usize(0..30)).map(|_| letters[random.usize(0..7)]).collect();
        let mut block = EnvBlock::parse(&device.read("bootenv")).unwrap();
        if random.bool() {
            editenv(&file, &["set", &format!("{key}={value}")]);
        } else {
            assert!(block.set(&key, value.as_bytes()));
            std::fs::write(&file, block.print().unwrap()).unwrap();
        }
        let read = EnvBlock::parse(&device.read("bootenv")).unwrap();
        let wanted = value.trim_matches([' ', '\n']).as_bytes();
        assert_eq!(read.get(&key), Some(wanted), "round {round}: {value:?}");
        let list = format!("\n{}", editenv(&file, &["list"]));
        assert!(list.contains(&format!("\n{key}={value}\n")), "round {round}: {value:?} in {list:?}");
    }
}
