//! Files that were damaged, left half done by others, or cannot be written.

use std::path::Path;

use copal::boot_state::envblock::{Damage, EnvBlock};
use copal::boot_state::{self, BootState, Named};
use copal::error::Code;
use copal::slot::Slot;
use copal::sys::log::events;
use md5::{Digest, Md5};

use crate::kit::alone::{in_own_process, is_alone};
use crate::kit::disk::tmpfs;
use crate::kit::log;
use crate::kit::process::tool;

use super::support::{Device, block, root, state, unselected};
use crate::kit::needs::{can_run, needs, test_name};

#[test]
fn a_damaged_block_is_rewritten_with_what_can_be_read() {
    let lines = "bootcount=1\nresin_root_part=2\nupgrade_available=1\nmine=x\n";
    let whole = block(lines);
    let wanted = block("bootcount=0\nresin_root_part=3\nupgrade_available=0\nmine=x\n");
    let count_last = block("resin_root_part=3\nupgrade_available=0\nbootcount=0\nmine=x\n");
    let by_hand = lines.replace('\n', "\r\n");
    let no_header = lines.as_bytes();
    let grown = [&whole[..], b"#"].concat();
    let mut torn = whole.clone();
    torn[512..].fill(0);
    let junk = block(&format!("some words\n{lines}more words\n"));
    // GRUB takes a block of any size. Without the first line it reads nothing, and words without `=` hide the key after them.
    let read = |count, damage| BootState { damage: Some(damage), ..state(Named::Index(2), count, true) };
    let unread = |damage| unselected(Named::Slot(Slot::B), Some(damage));
    for (damaged, read) in [
        (&whole[..1000], read(1, Damage::Size(1000))),
        (&grown, read(1, Damage::Size(1025))),
        (by_hand.as_bytes(), unread(Damage::Size(by_hand.len()))),
        (no_header, unread(Damage::Size(no_header.len()))),
        (&torn, read(1, Damage::Line)),
        (&junk, read(0, Damage::Line)), // the count is hidden
    ] {
        let device = Device::new(&[("EFI/BOOT/grubenv", damaged)]);
        let backend = boot_state::detect(&device.paths).unwrap();
        let what = String::from_utf8_lossy(damaged).into_owned();
        assert_eq!(backend.read().unwrap(), read, "{what}");
        backend.set(&root(Slot::B, 3), false).unwrap();
        let wanted = if damaged == junk { &count_last } else { &wanted };
        assert_eq!(&device.read("EFI/BOOT/grubenv"), wanted, "{what}");
    }
}

/// In a process of its own: whether anybody listens to an event is remembered for all threads, and others do what is told of here.
#[test]
fn a_repair_is_an_event_and_a_change_is_not() {
    if !is_alone() {
        in_own_process(test_name!(), &[]);
        return;
    }
    let device = Device::new(&[("bootenv", b"resin_root_part=A\n")]);
    let backend = boot_state::detect(&device.paths).unwrap();
    let change = || log::lines(|| backend.set(&root(Slot::B, 3), true).unwrap()).1;
    let said = change();
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(said[0].field("MESSAGE_ID"), events::ENVIRONMENT_REPAIRED);
    assert_eq!(said[0].field("COPAL_FILE"), device.at("bootenv").display().to_string());
    assert!(said[0].text.contains("18 bytes instead of 1024"), "{said:?}");
    assert!(change().is_empty());
}

#[test]
fn nothing_left_to_read_is_no_obstacle() {
    for damaged in [&[][..], &[0; 1024], &[0xff; 4096], &[b'#'; 1024]] {
        let device =
            Device::new(&[("grub/grubenv", damaged), ("grub/grub.cfg", b"load_env resin_root_part\n")]);
        let backend = boot_state::detect(&device.paths).unwrap();
        // Without a selection GRUB's configuration takes root B.
        let read = backend.read().unwrap();
        assert_eq!(read, unselected(Named::Slot(Slot::B), read.damage));
        assert!(read.damage.is_some());
        backend.set(&root(Slot::A, 2), true).unwrap();
        assert_eq!(
            device.read("grub/grubenv"),
            block("bootcount=0\nresin_root_part=2\nupgrade_available=1\n")
        );
    }
}

/// The file is gone, and GRUB's configuration says that it should be there.
#[test]
fn a_lost_grubenv_is_made_again() {
    let device =
        Device::new(&[("EFI/BOOT/grub.cfg", b"load_env resin_root_part\nresin-rootA resin-rootB\n")]);
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!((backend.name(), backend.counts()), ("GRUB", true));
    assert_eq!(backend.read().unwrap(), unselected(Named::Slot(Slot::B), Some(Damage::Missing)));
    backend.set(&root(Slot::A, 2), false).unwrap();
    assert_eq!(device.read("EFI/BOOT/grubenv").len(), 1024);
    assert_eq!(backend.read().unwrap(), state(Named::Index(2), 0, false));
}

/// More than a block holds, where there is no header to tell a block by: the selection counts.
#[test]
fn too_much_to_keep() {
    let text = format!("first=1\nlong={}\nresin_root_part=A\n", "x".repeat(2000));
    let device = Device::new(&[("bootenv", text.as_bytes())]);
    boot_state::detect(&device.paths).unwrap().set(&root(Slot::B, 3), true).unwrap();
    let read = EnvBlock::parse(&device.read("bootenv")).unwrap();
    assert_eq!((read.get("first"), read.get("long")), (Some(&b"1"[..]), None));
    assert_eq!(read.get("resin_root_part"), Some(&b"B"[..]));
}

#[test]
fn a_full_block_is_an_error_before_anything_is_written() {
    let full = block(&format!("resin_root_part=A\nx={}\n", "x".repeat(978)));
    let device = Device::new(&[("bootenv", &full)]);
    let e = boot_state::detect(&device.paths).unwrap().set(&root(Slot::B, 3), true).unwrap_err();
    assert_eq!(e.code(), Code::BootStateUnwritable);
    assert!(e.message().contains("its contents would take"), "{e}");
    assert_eq!(device.read("bootenv"), full);
}

#[test]
fn odd_values_are_read_as_the_bootloader_takes_them() {
    let read = |lines: &str| {
        let device = Device::new(&[("grub/grubenv", &block(lines))]);
        boot_state::detect(&device.paths).unwrap().read().unwrap()
    };
    let whole = |root: &str, count: &str| {
        read(&format!("bootcount={count}\nresin_root_part={root}\nupgrade_available=yes\n"))
    };
    assert_eq!(whole("2", "0 "), state(Named::Index(2), 0, false));
    // GRUB compares with 2, and takes root B for anything else.
    assert_eq!(whole("", ""), unselected(Named::Slot(Slot::B), Some(Damage::NoRoot)));
    assert_eq!(whole("two", "many"), unselected(Named::Slot(Slot::B), Some(Damage::NoRoot)));
    for root in ["02", "+2", "2\r"] {
        assert_eq!(whole(root, "0"), unselected(Named::Slot(Slot::B), Some(Damage::NoRoot)), "{root:?}");
    }
    let uboot = |uenv: &[u8], count: &[u8]| {
        let device = Device::new(&[("resinOS_uEnv.txt", uenv), ("bootcount.env", count)]);
        boot_state::detect(&device.paths).unwrap().read().unwrap()
    };
    assert_eq!(uboot(b"resin_root_part=b\n", b"bootcount=1f\r\n\0"), state(Named::Index(11), 31, false));
    // A key without a value is deleted, and with it the root that U-Boot has built in.
    assert_eq!(uboot(b"resin_root_part=\n", b""), unselected(Named::Other("".into()), Some(Damage::NoRoot)));
    let junk = unselected(Named::Other("x".into()), Some(Damage::NoRoot));
    assert_eq!(uboot(b"resin_root_part=x\n", b"bootcount=2\xff\n\0"), BootState { bootcount: 2, ..junk });
    assert_eq!(uboot(&[0; 64], &[0; 13]), unselected(Named::Index(2), None));
}

/// Garbage where the count is: the next thing that reads it may take it for anything.
#[test]
fn a_count_that_is_no_number_is_cleared() {
    let device =
        Device::new(&[("grub/grubenv", &block("bootcount=many\nresin_root_part=2\nupgrade_available=1\n"))]);
    boot_state::detect(&device.paths).unwrap().clear_bootcount().unwrap();
    assert_eq!(device.read("grub/grubenv"), block("bootcount=0\nresin_root_part=2\nupgrade_available=1\n"));
}

#[test]
fn nothing_is_written_where_the_count_is_clear() {
    use std::os::unix::fs::MetadataExt;
    let device = Device::new(&[("bootenv", &block("bootcount=0 \nresin_root_part=A\n"))]);
    let written = || std::fs::metadata(device.at("bootenv")).unwrap();
    let before = written();
    boot_state::detect(&device.paths).unwrap().clear_bootcount().unwrap();
    assert_eq!((before.mtime(), before.mtime_nsec()), (written().mtime(), written().mtime_nsec()));
    assert_eq!(device.read("bootenv"), block("bootcount=0 \nresin_root_part=A\n"));
}

fn side_of(name: &str, content: &[u8]) -> String {
    let digest: String = Md5::digest(content).iter().map(|b| format!("{b:02x}")).collect();
    format!(".{name}.0123abcd.{digest}.md5sum")
}

/// Written by a shell part of the system, and the power went before it was in place.
#[test]
fn a_complete_side_file_is_what_counts() {
    let (old, new) = (block("resin_root_part=2\nx=old\n"), block("resin_root_part=3\nx=new\n"));
    let side = side_of("grubenv", &new);
    let device = Device::new(&[("grub/grubenv", &old)]);
    device.write(&format!("grub/{side}"), &new);
    device.write("grub/.grubenv.0123abcd.00112233445566778899aabbccddeeff.md5sum", b"cut off");
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap().root, Named::Index(3));
    backend.set(&root(Slot::A, 2), true).unwrap();
    let wanted = block("resin_root_part=2\nx=new\nbootcount=0\nupgrade_available=1\n");
    assert_eq!(device.read("grub/grubenv"), wanted);
    let names: Vec<_> =
        std::fs::read_dir(device.at("grub")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["grubenv"]);
    // Also of a file that does not exist yet.
    let device = Device::new(&[]);
    let uenv = b"resin_root_part=3\nupgrade_available=1\n";
    device.write(&side_of("resinOS_uEnv.txt", uenv), uenv);
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 0, true));
    backend.set(&root(Slot::B, 3), false).unwrap();
    assert_eq!(device.names(), ["resinOS_uEnv.txt"]);
    assert_eq!(device.text("resinOS_uEnv.txt"), "resin_root_part=3\nupgrade_available=0\n");
}

fn fill(folder: &Path) {
    let mut size = 64 << 10;
    let file = std::fs::File::create(folder.join("filler")).unwrap();
    let mut end = 0;
    while size > 0 {
        match std::os::unix::fs::FileExt::write_at(&file, &vec![1; size], end) {
            Ok(n) if n > 0 => end += u64::try_from(n).unwrap(),
            _ => size /= 2,
        }
    }
}

#[test]
fn a_full_boot_partition() {
    needs!(can_run);
    let device = Device::new(&[]);
    let mounted = tmpfs(&device.paths.boot(), 32);
    let old = block("bootcount=1\nresin_root_part=A\nupgrade_available=1\n");
    let uenv = "resin_root_part=2\nupgrade_available=0\n";
    device.write("bootenv", &old);
    device.write("resinOS_uEnv.txt", uenv.as_bytes());
    fill(&device.paths.boot());
    // In place there is nothing to make room for.
    boot_state::balena(&device.paths).unwrap().set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(device.read("bootenv"), block("bootcount=0\nresin_root_part=B\nupgrade_available=1\n"));
    let uboot = boot_state::uboot(&device.paths).unwrap();
    uboot.set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(device.text("resinOS_uEnv.txt"), "resin_root_part=3\nupgrade_available=1\n");
    // What gets longer needs a second file.
    let short = "resin_root_part=2\n";
    device.write("resinOS_uEnv.txt", short.as_bytes());
    let e = uboot.set(&root(Slot::B, 3), true).unwrap_err();
    assert_eq!(e.code(), Code::BootStateUnwritable);
    assert_eq!(device.text("resinOS_uEnv.txt"), short);
    assert_eq!(device.names(), ["bootenv", "filler", "resinOS_uEnv.txt"]);
    drop(mounted);
}

#[test]
fn a_boot_partition_that_is_read_only() {
    needs!(can_run);
    let device = Device::new(&[]);
    let mounted = tmpfs(&device.paths.boot(), 32);
    let old = block("bootcount=1\nresin_root_part=A\nupgrade_available=1\n");
    device.write("bootenv", &old);
    device.write("bootcount.env", b"bootcount=2\n\0");
    tool(&["mount", "-o", "remount,ro", device.paths.boot().to_str().unwrap()]);
    let all = [boot_state::balena(&device.paths), boot_state::uboot(&device.paths)];
    for backend in all.map(Result::unwrap) {
        backend.read().unwrap();
        assert_eq!(backend.set(&root(Slot::B, 3), true).unwrap_err().code(), Code::BootStateUnwritable);
        assert_eq!(backend.clear_bootcount().unwrap_err().code(), Code::BootStateUnwritable);
    }
    assert_eq!(device.read("bootenv"), old);
    assert_eq!(device.names(), ["bootcount.env", "bootenv"]);
    drop(mounted);
}

/// On an encrypted disk GRUB is on a partition of its own, to which the other one has a link.
#[test]
fn grub_at_the_link_of_an_encrypted_disk() {
    let device = Device::new(&[]);
    let efi = device.paths.at("/mnt/efi/EFI/BOOT");
    std::fs::create_dir_all(&efi).unwrap();
    std::fs::write(efi.join("grubenv"), block("resin_root_part=2\nupgrade_available=0\n")).unwrap();
    std::os::unix::fs::symlink("../efi/EFI", device.at("EFI")).unwrap();
    let backend = boot_state::detect(&device.paths).unwrap();
    assert_eq!(backend.name(), "GRUB");
    backend.set(&root(Slot::B, 3), true).unwrap();
    assert_eq!(backend.read().unwrap(), state(Named::Index(3), 0, true));
    assert_eq!(
        EnvBlock::parse(&std::fs::read(efi.join("grubenv")).unwrap()).unwrap().get("bootcount"),
        Some(&b"0"[..])
    );
}

#[test]
fn firmware_decides_between_two_folders_of_grub() {
    let device = Device::new(&[("EFI/BOOT/grubenv", &block("")), ("grub/grubenv", &block(""))]);
    let folder = || boot_state::grub(&device.paths).unwrap().file().to_owned();
    assert_eq!(folder(), device.at("grub/grubenv"));
    std::fs::create_dir_all(device.paths.at("/sys/firmware/efi")).unwrap();
    assert_eq!(folder(), device.at("EFI/BOOT/grubenv"));
}
