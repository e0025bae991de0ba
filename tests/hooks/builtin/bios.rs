//! GRUB for a BIOS: what is on the disk outside of file systems.

use std::fs;
use std::path::Path;

use copal::error::Code;

use super::machine::{DISK, Machine, PLAIN, golden, see};

pub const HOOK: &str = "99-resin-grub";
/// First byte of the first partition.
const FIRST: usize = 4 << 20;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(1..)).collect()
}

/// A `boot.img` as GRUB builds it, as far as anybody looks at it.
pub fn boot_img(seed: u64) -> Vec<u8> {
    let mut image = noise(512, seed);
    image[0x5c..0x64].copy_from_slice(&1u64.to_le_bytes());
    image
}

/// A `core.img`.
pub fn core_img(len: usize, seed: u64) -> Vec<u8> {
    let mut image = noise(len, seed + 1000);
    image[488..500].fill(0);
    image[500..508].copy_from_slice(&2u64.to_le_bytes());
    let rest = u16::try_from(len.div_ceil(512) - 1).unwrap();
    image[508..510].copy_from_slice(&rest.to_le_bytes());
    image
}

/// A disk with a partition table and this GRUB.
pub fn disk(boot: &[u8], core: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; usize::try_from(DISK).unwrap()];
    disk[..446].copy_from_slice(&boot[..446]);
    disk[446 + 4] = 0x0c;
    disk[446 + 8..446 + 12].copy_from_slice(&u32::try_from(FIRST / 512).unwrap().to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&2048u32.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[512..512 + core.len()].copy_from_slice(core);
    disk[FIRST..].fill(0x77);
    disk
}

/// What a BIOS starts: the `core.img` that the master boot record leads to, as it was built.
pub fn started(disk: &[u8]) -> Vec<u8> {
    let number =
        |at: usize| usize::try_from(u64::from_le_bytes(disk[at..at + 8].try_into().unwrap())).unwrap();
    let first = number(0x5c) * 512;
    let rest = number(first + 500) * 512;
    assert_eq!(rest, first + 512, "in one piece");
    let count = usize::from(u16::from_le_bytes(disk[first + 508..first + 510].try_into().unwrap()));
    let mut core = disk[first..rest + count * 512].to_vec();
    core[500..508].copy_from_slice(&2u64.to_le_bytes());
    core
}

pub fn ship(machine: &Machine, boot: &[u8], core: &[u8]) {
    fs::create_dir_all(machine.at("/resin-boot/grub")).unwrap();
    fs::write(machine.at("/resin-boot/grub/boot.img"), boot).unwrap();
    fs::write(machine.at("/resin-boot/grub/core.img"), core).unwrap();
}

fn machine(case: &str, disk: &[u8], boot: &[u8], core: &[u8]) -> Machine {
    let machine = Machine::new(PLAIN);
    machine.lay(&golden(case, "root"));
    fs::write(machine.at("/dev/sda"), disk).unwrap();
    ship(&machine, boot, core);
    machine
}

fn on(machine: &Machine) -> Vec<u8> {
    fs::read(machine.at("/dev/sda")).unwrap()
}

#[test]
fn loaders_are_written_where_they_differ_and_nothing_else_of_the_disk_changes() {
    for case in ["grub-bios", "grub-legacy"] {
        for (old_len, new_len) in [(30_000, 40_000), (40_000, 30_001), (512, 1025)] {
            let before = disk(&boot_img(1), &core_img(old_len, 1));
            let (boot, core) = (boot_img(2), core_img(new_len, 2));
            let machine = machine(case, &before, &boot, &core);
            machine.run(HOOK, true).unwrap();
            let mut wanted = before.clone();
            wanted[..446].copy_from_slice(&boot[..446]);
            wanted[512..512 + new_len].copy_from_slice(&core);
            assert!(on(&machine) == wanted, "{case}: {new_len} over {old_len}");
            assert_eq!(machine.see(), see(&golden(case, "expected/mnt")), "{case}");
            let written = || fs::metadata(machine.at("/dev/sda")).unwrap().modified().unwrap();
            let time = written();
            machine.run(HOOK, true).unwrap();
            assert_eq!(written(), time, "nothing is written again");
        }
    }
}

#[test]
fn without_space_for_a_copy_it_is_written_over_the_old_one() {
    // Another number of sectors than it has; no list that is known; something in the room.
    type Change = fn(&mut Vec<u8>, &mut Vec<u8>);
    let cases: [Change; 3] =
        [|_, core| core[508] += 1, |boot, _| boot[0x5c] = 7, |_, core| core.resize(3 << 20, 9)];
    for (n, change) in cases.into_iter().enumerate() {
        let (mut boot, mut core) = (boot_img(2), core_img(20_000, 2));
        change(&mut boot, &mut core);
        let before = disk(&boot_img(1), &core_img(30_000, 1));
        let machine = machine("grub-bios", &before, &boot, &core);
        machine.run(HOOK, true).unwrap();
        let mut wanted = before;
        wanted[..446].copy_from_slice(&boot[..446]);
        wanted[512..512 + core.len()].copy_from_slice(&core);
        assert!(on(&machine) == wanted, "{n}");
    }
    let mut before = disk(&boot_img(1), &core_img(30_000, 1));
    before[FIRST / 2 + 700] = 1;
    let core = core_img(20_000, 2);
    let machine = machine("grub-bios", &before, &boot_img(1), &core);
    machine.run(HOOK, true).unwrap();
    before[512..512 + core.len()].copy_from_slice(&core);
    assert!(on(&machine) == before, "what is in the room belongs to somebody");
}

#[test]
fn what_must_not_be_overwritten_is_refused_with_the_old_root_selected() {
    let (boot, core) = (boot_img(2), core_img(20_000, 2));
    let before = disk(&boot_img(1), &core_img(20_000, 1));
    let refused = |disk: &[u8], core: &[u8], code: Code, words: &str| {
        let machine = machine("grub-bios", disk, &boot, core);
        let files = machine.see();
        let e = machine.run(HOOK, true).unwrap_err();
        assert_eq!(e.code(), code, "{e}");
        assert!(e.to_string().contains(words), "{e}");
        assert!(on(&machine) == disk, "{words}");
        assert_eq!(machine.see(), files, "{words}");
        // Back it goes all the same.
        let back = machine.run(HOOK, false).unwrap_err();
        assert_eq!(back.code(), code, "{back}");
        assert!(machine.see()["boot/grub/grubenv"].contains("resin_root_part=2\nupgrade_available=0\n"));
    };
    refused(&before, &core_img(FIRST, 2), Code::SpanOverFileSystem, "first partition begins at byte 4194304");
    refused(&gpt(), &core, Code::SpanOverTable, "GPT");
    let mut no_table = before.clone();
    no_table[510] = 0;
    refused(&no_table, &core, Code::PartitionTableInvalid, "partition table");

    let machine = machine("grub-bios", &before, &boot, &core);
    fs::remove_file(machine.at("/resin-boot/grub/core.img")).unwrap();
    let e = machine.run(HOOK, true).unwrap_err();
    assert_eq!(e.code(), Code::ImageMissing, "{e}");
    assert!(on(&machine) == before && machine.at("/mnt/boot/EFI/BOOT/grubenv").exists());
}

/// A disk with a GPT.
fn gpt() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::File::create(&path).unwrap().set_len(DISK).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut table = gpt::GptConfig::new().writable(true).create_from_device(file, None).unwrap();
    table.add_partition("resin-boot", 1 << 20, gpt::partition_types::BASIC, 0, None).unwrap();
    let mut file = table.write().unwrap();
    let blocks = u32::try_from(DISK / 512 - 1).unwrap();
    gpt::mbr::ProtectiveMBR::with_lb_size(blocks).overwrite_lba0(&mut file).unwrap();
    read(&path)
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}
