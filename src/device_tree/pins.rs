//! Pins: files that the owner keeps, `copal/keep` on the boot partition.
//!
//! A path means two files: `boot/PATH` of a root, which an update carries also where the release has a file of that name, and `PATH` of the
//! boot partition, which `1-bootfiles` does not overwrite.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::config::paths::Paths;
use crate::config::update_conf::plain_path;
use crate::sys::file;

/// Below the boot partition.
pub const FILE: &str = "copal/keep";

/// Limit of pins: each is looked for in every layer of an archive.
const MAX_PINS: usize = 256;

/// Limit in bytes.
const MAX_PINS_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    /// In the order of the file, each once.
    pub paths: Vec<PathBuf>,
    /// They are skipped.
    pub bad: Vec<BadLine>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine {
    /// From 1; 0 where the file itself cannot be read.
    pub number: usize,
    pub text: String,
    pub why: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => write!(f, "/mnt/boot/{FILE}: {}", self.why),
            number => write!(f, "/mnt/boot/{FILE}, line {number}, {:?}: {}", self.text, self.why),
        }
    }
}

impl Pins {
    /// Without the file, none.
    #[must_use]
    pub fn read(paths: &Paths) -> Pins {
        match file::read_text(&paths.boot().join(FILE), MAX_PINS_BYTES) {
            Ok(text) => Pins::parse(&text),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Pins::default()
            }
            Err(e) => {
                let why = format!("it cannot be read, and nothing is pinned: {e}");
                Pins { bad: vec![BadLine { number: 0, text: String::new(), why }], ..Pins::default() }
            }
        }
    }

    /// [`read`](Pins::read), with a warning for each bad line.
    #[must_use]
    pub fn read_aloud(paths: &Paths) -> Pins {
        let pins = Pins::read(paths);
        for line in &pins.bad {
            tracing::warn!("{line}; skipping it");
        }
        pins
    }

    fn parse(text: &str) -> Pins {
        let mut pins = Pins::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |why: &str| BadLine { number, text: line.to_owned(), why: why.to_owned() };
            match plain_path(line) {
                None => pins.bad.push(bad("it is not a plain path below the boot folder")),
                Some(path) => match never(&path) {
                    Some(why) => pins.bad.push(bad(why)),
                    None if pins.has(&path) => {}
                    None if pins.paths.len() >= MAX_PINS => {
                        pins.bad.push(bad("there are too many pins before it"));
                        break;
                    }
                    None => pins.paths.push(path),
                },
            }
        }
        pins
    }

    #[must_use]
    pub fn has(&self, path: &Path) -> bool {
        self.paths.iter().any(|p| p == path)
    }
}

const KERNEL: &str = "a kernel, or what it starts with, cannot be pinned: it belongs to one release";
const BOOTLOADER: &str = "a bootloader, or its script, cannot be pinned: it belongs to one release";
const OWN: &str = "it cannot be pinned: no update overwrites it, or a program keeps it";

/// The first program, kernels and initial file systems, by the name before the first `.` or `-`.
const KERNELS: [&str; 10] =
    ["init", "initrd", "initramfs", "bzimage", "zimage", "uimage", "image", "fitimage", "vmlinuz", "vmlinux"];

/// Beginnings of names: U-Boot and its stages, the loaders of NXP, Rockchip, TI and Raspberry Pi, GRUB, syslinux.
const BOOTLOADERS: [&str; 18] = [
    "u-boot",
    "uboot",
    "boot.scr",
    "boot.img",
    "core.img",
    "grub",
    "syslinux",
    "ldlinux",
    "imx-boot",
    "flash.bin",
    "idbloader",
    "tiboot3",
    "tispl",
    "sysfw",
    "bootcode",
    "armstub",
    "bl31",
    "pieeprom",
];

/// Environments, and files of the owner and the supervisor: no update overwrites them.
const SETTINGS: [&str; 11] = [
    "grubenv",
    "grub_extraenv",
    "bootenv",
    "uenv.txt",
    "extra_uenv.txt",
    "resinos_uenv.txt",
    "config.txt",
    "cmdline.txt",
    "config.json",
    "configfs.json",
    "hw_intfc.conf",
];

/// Why a path is never pinned. FAT ignores case.
pub(crate) fn never(path: &Path) -> Option<&'static str> {
    let lower = path.to_string_lossy().to_lowercase();
    let name = lower.rsplit('/').next().unwrap_or_default();
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let stem = name.split(['.', '-']).next().unwrap_or_default();
    let in_folder = |folders: &[&str]| folders.iter().any(|f| lower.starts_with(f));
    let firmware =
        name.starts_with("start") && ends(&[".elf"]) || name.starts_with("fixup") && ends(&[".dat"]);
    match name {
        _ if in_folder(&["copal/"]) || ends(&[".fingerprint", ".env"]) || SETTINGS.contains(&name) => {
            Some(OWN)
        }
        _ if in_folder(&["efi/", "grub/", "extlinux/", "syslinux/"]) => Some(BOOTLOADER),
        _ if BOOTLOADERS.iter().any(|b| name.starts_with(b)) || ["spl", "mlo"].contains(&stem) => {
            Some(BOOTLOADER)
        }
        _ if firmware || ends(&[".efi", ".secureboot", ".sig", ".scr"]) => Some(BOOTLOADER),
        // Whatever it is called: kernels have no such ending.
        _ if ends(&[".dtb", ".dtbo"]) => None,
        _ if KERNELS.contains(&stem) || name.starts_with("kernel") => Some(KERNEL),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decides_what_starts_is_never_pinned() {
        for path in [
            "init",
            "bzImage",
            "zImage",
            "Image.gz",
            "Image-initramfs-board.bin",
            "vmlinuz",
            "kernel8.img",
            "kernel_2712.img",
            "fitImage",
            "u-boot.bin",
            "u-boot.dtb",
            "MLO",
            "SPL",
            "spl.bin",
            "boot.scr",
            "boot.scr.uimg",
            "EFI/BOOT/own.dtb",
            "grub/grub.cfg",
            "x/own.efi",
            "start4.elf",
            "fixup.dat",
            "imx-boot",
            "resinOS_uEnv.txt",
            "bootcount.env",
            "extra_uEnv.txt",
            "grubenv",
            "config.json",
            "CONFIG.TXT",
            "extlinux/extlinux.conf",
            "balenaos.fingerprint",
            "copal/keep",
        ] {
            assert!(never(Path::new(path)).is_some(), "{path}");
        }
        for path in [
            "own.dtb",
            "overlays/own.dtbo",
            "image-board.dtb",
            "kernel.dtb",
            "firmware/wifi.bin",
            "splash/own.png",
            "splash.bmp",
            "start.png",
            "calibration.dat",
            "initial.conf",
        ] {
            assert_eq!(never(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn a_bad_line_is_named_and_the_others_count() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        assert_eq!(Pins::read(&paths), Pins::default());
        std::fs::create_dir_all(root.path().join("mnt/boot/copal")).unwrap();
        let file = root.path().join("mnt/boot").join(FILE);
        let text = "# mine\r\n own.dtb \r\n/overlays/a.dtbo\n../x\n\noverlays/b.dtbo\n./own.dtb\nzImage\n";
        std::fs::write(&file, text).unwrap();
        let pins = Pins::read(&paths);
        assert_eq!(pins.paths, [PathBuf::from("own.dtb"), "overlays/b.dtbo".into()]);
        let bad: Vec<_> = pins.bad.iter().map(|l| (l.number, l.text.as_str())).collect();
        assert_eq!(bad, [(3, "/overlays/a.dtbo"), (4, "../x"), (8, "zImage")]);
        assert!(pins.has(Path::new("own.dtb")) && !pins.has(Path::new("OWN.dtb")));
        std::fs::write(&file, [0xff; 8]).unwrap();
        let pins = Pins::read(&paths);
        assert_eq!((pins.paths.len(), pins.bad.len(), pins.bad[0].number), (0, 1, 0));
    }

    #[test]
    fn more_pins_than_the_limit_are_reported() {
        let text: String = (0..MAX_PINS + 10).map(|n| format!("{n}.dtb\n")).collect();
        let pins = Pins::parse(&text);
        assert_eq!((pins.paths.len(), pins.bad.len(), pins.bad[0].number), (MAX_PINS, 1, MAX_PINS + 1));
    }
}
