//! Both ways between copal and the real `grub-editenv`.

use std::path::Path;
use std::process::Command;

use copal::boot_state::envblock::EnvBlock;
use copal::boot_state::variables::Variables;
use copal::boot_state::{self, Named};
use copal::slot::Slot;

use super::support::{Device, block, root, state, unselected};
use crate::kit::needs::{has, needs};

fn editenv(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("grub-editenv").arg(file).args(arguments).output();
    let output = output.expect("grub-editenv of grub-common is one of the tools of the tests");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_grub_makes_copal_changes_in_place() {
    needs!(|test| has(test, "grub-editenv"));
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

/// As v8.0.2 of balenaOS has it in its images.
#[test]
fn a_block_that_ends_with_a_newline_gets_space_by_the_next_change() {
    needs!(|test| has(test, "grub-editenv"));
    for (name, root_part) in [("bootenv", "A"), ("EFI/BOOT/grubenv", "2")] {
        let mut shipped = block(&format!("bootcount=0\nresin_root_part={root_part}\nupgrade_available=0\n"));
        *shipped.last_mut().unwrap() = b'\n';
        let device = Device::new(&[(name, &shipped)]);
        let backend = boot_state::detect(&device.paths).unwrap();
        assert!(backend.read().unwrap().selected);
        assert!(backend.warnings()[0].0.ends_with("ends with a newline: grub-editenv cannot change it"));
        let tried =
            Command::new("grub-editenv").arg(device.at(name)).args(["set", "mine=1"]).output().unwrap();
        assert!(!tried.status.success(), "{tried:?}");
        backend.set(&root(Slot::B, 3), true).unwrap();
        assert_eq!(backend.warnings(), []);
        editenv(&device.at(name), &["set", "mine=1"]);
        assert_eq!(backend.variable("mine").unwrap().as_deref(), Some("1"));
    }
}

fn inode(file: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(file).unwrap())
}

#[test]
fn what_copal_makes_grub_reads_and_changes() {
    needs!(|test| has(test, "grub-editenv"));
    let device = Device::new(&[]);
    let file = device.at("bootenv");
    let backend = boot_state::balena(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap(), unselected(Named::Slot(Slot::A), None));
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
    needs!(|test| has(test, "grub-editenv"));
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
    needs!(|test| has(test, "grub-editenv"));
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

/// What `grub-editenv` lists, or `None` where it cannot read the block.
fn listed(file: &Path) -> Option<Vec<u8>> {
    let output = Command::new("grub-editenv").arg(file).arg("list").output().unwrap();
    output.status.success().then_some(output.stdout)
}

/// Whatever byte of a block is damaged: copal reads what `grub-editenv`, which has GRUB's parser, reads.
#[test]
fn a_damaged_block_is_read_as_grub_reads_it() {
    needs!(|test| has(test, "grub-editenv"));
    let device = Device::new(&[]);
    let file = device.at("bootenv");
    let lines = "# w\nbootcount=1\nresin_root_part=2\nodd=a\\\nb\\\\\nupgrade_available=1\n";
    let whole = block(lines);
    let header = "# GRUB Environment Block\n".len();
    let mut cases = Vec::new();
    for at in 0..header + lines.len() + 2 {
        let with: &[u8] = if at < header { &[0, b'\n', b'#', 0xff] } else { b"\0\n#\\=x" };
        for byte in with.iter().chain(&[whole[at] ^ 0x01]).filter(|byte| **byte != whole[at]) {
            let mut damaged = whole.clone();
            damaged[at] = *byte;
            cases.push((at, damaged));
        }
    }
    for size in [0, 1, header - 1, header, header + 1, header + 20, 512, 1023] {
        cases.push((size, whole[..size].to_vec()));
    }
    cases.push((1025, [&whole[..], b"\n"].concat()));
    let mut unread = 0;
    for (at, damaged) in cases {
        std::fs::write(&file, &damaged).unwrap();
        let read = Variables::of_block(&damaged).ok();
        unread += usize::from(read.is_none());
        let list = |read: Variables| -> Vec<u8> {
            read.iter().flat_map(|(name, value)| [name, b"=", value, b"\n"].concat()).collect()
        };
        let (read, listed) = (read.map(list), listed(&file));
        let text = |list: &Option<Vec<u8>>| list.as_ref().map(|l| String::from_utf8_lossy(l).into_owned());
        assert_eq!(text(&read), text(&listed), "byte {at}: {:?}", String::from_utf8_lossy(&damaged));
    }
    assert!(unread > 4 * header, "{unread}");
}
