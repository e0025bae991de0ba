//! Configuration, bootloaders, the image and its companions, in the order of the table.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::{Case, Make};
use crate::rig::{MIB, image, tool};

const CONF: &str = "etc/resin-init-flasher.conf";

pub const SITUATIONS: &[(&str, &[Make])] = &[
    (
        "configuration missing",
        &[|c| {
            c.remove(CONF);
            names(c, "/etc/resin-init-flasher.conf");
        }],
    ),
    (
        "configuration not readable: a folder, a FIFO",
        &[|c| in_the_way(c, CONF, "mkdir"), |c| in_the_way(c, CONF, "mkfifo")],
    ),
    (
        "syntax error in the configuration",
        &[|c| conf(c, &["FIRST=1", "no assignment"], "/etc/resin-init-flasher.conf:4:")],
    ),
    (
        "quote that is never closed in the configuration",
        &[|c| conf(c, &["A='open"], "/etc/resin-init-flasher.conf:3:3")],
    ),
    (
        "expansion in the configuration",
        &[
            |c| conf(c, &["BALENA_IMAGE=$NAME"], "/etc/resin-init-flasher.conf:3:14"),
            |c| conf(c, &["BALENA_IMAGE=$(touch /etc/ran)"], "/etc/resin-init-flasher.conf:3:14"),
            |c| conf(c, &["BALENA_IMAGE=`touch /etc/ran`"], "/etc/resin-init-flasher.conf:3:14"),
        ],
    ),
    (
        "bootloader configuration without a place to go",
        &[|c| conf(c, &["INTERNAL_DEVICE_BOOTLOADER_CONFIG=grub.cfg_internal"], "grub.cfg_internal")],
    ),
    ("bootloader device without an image", &[|c| loader(c, "", "1024", "3", "BOOTLOADER_IMAGE")]),
    ("bootloader block size 0", &[|c| loader(c, "loader", "0", "3", "BOOTLOADER_BLOCK_SIZE_OFFSET")]),
    (
        "bootloader block size not a number",
        &[|c| loader(c, "loader", "1k5", "3", "BOOTLOADER_BLOCK_SIZE_OFFSET")],
    ),
    (
        "bootloader block size too large a number",
        &[|c| loader(c, "loader", "99999999999999999999", "3", "BOOTLOADER_BLOCK_SIZE_OFFSET")],
    ),
    (
        "bootloader blocks beyond 2^63 bytes",
        &[|c| loader(c, "loader", "1024", "9007199254740992", "BOOTLOADER_SKIP_OUTPUT_BLOCKS")],
    ),
    ("bootloader missing on the medium", &[|c| loader(c, "none", "1024", "33", "/mnt/boot/none")]),
    (
        "bootloader leaves the device",
        &[|c| {
            let disk = c.rig.disk.node.clone();
            loader(c, "loader", "1024", "49152", &disk);
        }],
    ),
    ("bootloader touches the partition table", &[|c| loader(c, "loader", "1024", "1", "partition table")]),
    ("bootloader overlaps a file system", &[|c| loader(c, "loader", "1M", "2", "resin-boot")]),
    (
        "image missing",
        &[|c| {
            c.remove("opt/balena.img");
            names(c, "balena.img");
        }],
    ),
    (
        "two images",
        &[
            |c| {
                c.rig.put("var/balena.img", "another");
                names(c, "/opt/balena.img, /var/balena.img");
            },
            |c| {
                compressed(c, 0, |_| {});
                c.rig.put("var/balena.img.xz", "another");
                names(c, "/opt/balena.img.gz, /var/balena.img.xz");
            },
        ],
    ),
    (
        "image below `/tmp` that is not root's alone",
        &[
            |c| below_tmp(c, "chown 1000 balena.img", "balena.img"),
            |c| below_tmp(c, "chmod 664 balena.img", "balena.img"),
            |c| below_tmp(c, "ln balena.img second", "balena.img"),
            |c| below_tmp(c, "chmod 777 .", ""),
            |c| below_tmp(c, "mkdir -m 777 in; mv balena.img in", "in"),
            |c| below_tmp(c, "touch balena.img.sha256; chown 1000 balena.img.sha256", "balena.img.sha256"),
            |c| below_tmp(c, "touch balena.img.bmap; chmod 666 balena.img.bmap", "balena.img.bmap"),
        ],
    ),
    (
        "image below `/tmp` that is a link",
        &[|c| below_tmp(c, "mv balena.img /var; ln -s /var/balena.img .", "balena.img")],
    ),
    ("image is a folder", &[|c| in_the_way(c, "opt/balena.img", "mkdir")]),
    ("image is a FIFO", &[|c| in_the_way(c, "opt/balena.img", "mkfifo")]),
    ("image empty", &[|c| replaced(c, "balena.img", b"")]),
    (
        "truncated gz, xz, zst",
        &[|c| compressed(c, 0, cut), |c| compressed(c, 1, cut), |c| compressed(c, 2, cut)],
    ),
    (
        "damaged gz, xz, zst",
        &[
            |c| compressed(c, 0, |b| damage(b)),
            |c| compressed(c, 1, |b| damage(b)),
            |c| compressed(c, 2, |b| damage(b)),
        ],
    ),
    (
        "garbage after the end of gz, xz, zst",
        &[|c| compressed(c, 0, litter), |c| compressed(c, 1, litter), |c| compressed(c, 2, litter)],
    ),
    ("window too large", &[wide]),
    (
        "`.bmap` of more than 1 MiB",
        &[|c| {
            c.rig.put("opt/balena.img.bmap", " ".repeat((1 << 20) + 1));
            names(c, "/opt/balena.img.bmap");
        }],
    ),
    ("`.bmap` of another image", &[foreign_map]),
    ("`.sha256` that is none", &[|c| checksum(c, "not a checksum\n")]),
    ("`.sha256` of another image", &[|c| checksum(c, &format!("{}  balena.img\n", "0".repeat(64)))]),
    ("no partition table", &[|c| replaced(c, "balena.img", &vec![b'x'; 4 << 20])]),
    ("no partition `resin-boot`", &[other_label]),
];

fn names(c: &mut Case, object: &str) {
    c.object = object.to_owned();
}

fn conf(c: &mut Case, lines: &[&str], object: &str) {
    c.rig.conf(lines);
    names(c, object);
}

/// A copy of the image below `/tmp`, which passes but for what a command does there. The object is below `/tmp`, too.
fn below_tmp(c: &mut Case, command: &str, object: &str) {
    let script =
        format!("set -e; cd /tmp; cp /opt/balena.img .; chmod 644 balena.img; {command}; exec \"$@\"");
    c.wrapper = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    let object = Path::new("/tmp").join(object);
    // Without the slash at the end of `/tmp/`.
    let object: PathBuf = object.components().collect();
    names(c, object.to_str().unwrap());
}

/// Something else, made by a tool, where a file should be.
fn in_the_way(c: &mut Case, path: &str, tool_name: &str) {
    c.remove(path);
    tool(&[tool_name, c.rig.root().join(path).to_str().unwrap()]);
    names(c, &format!("/{path}"));
}

/// A bootloader write to the internal disk.
fn loader(c: &mut Case, image: &str, block: &str, skip: &str, object: &str) {
    c.rig.boot("loader", "U-Boot");
    let lines = [
        format!("BOOTLOADER_FLASH_DEVICE={}", c.rig.disk.name()),
        format!("BOOTLOADER_IMAGE={image}"),
        format!("BOOTLOADER_BLOCK_SIZE_OFFSET={block}"),
        format!("BOOTLOADER_SKIP_OUTPUT_BLOCKS={skip}"),
    ];
    conf(c, &lines.each_ref().map(String::as_str), object);
}

/// Another image under this name.
fn replaced(c: &mut Case, name: &str, bytes: &[u8]) {
    c.remove("opt/balena.img");
    c.rig.put(&format!("opt/{name}"), bytes);
    names(c, &format!("/opt/{name}"));
}

/// What a program makes of the image.
fn made_of_image(argv: &[&str]) -> Vec<u8> {
    let image = std::fs::File::open(image()).unwrap();
    let out = Command::new(argv[0]).args(&argv[1..]).stdin(image).stderr(Stdio::inherit()).output().unwrap();
    assert!(out.status.success(), "{argv:?}");
    out.stdout
}

/// The image in the first, second or third format, and what is to be done to it.
fn compressed(c: &mut Case, format: usize, spoil: fn(&mut Vec<u8>)) {
    static ALL: OnceLock<[(&str, Vec<u8>); 3]> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        [
            ("balena.img.gz", made_of_image(&["gzip", "-1"])),
            ("balena.img.xz", made_of_image(&["xz", "-0"])),
            ("balena.img.zst", made_of_image(&["zstd", "-q", "-1"])),
        ]
    });
    let (name, mut bytes) = all[format].clone();
    spoil(&mut bytes);
    replaced(c, name, &bytes);
}

fn cut(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() / 2);
}

/// Flips a bit near the end: of a checksum (gzip, zstd), or of what one covers (xz).
fn damage(bytes: &mut [u8]) {
    let at = bytes.len() - 5 + usize::from(bytes.starts_with(b"\x28\xb5\x2f\xfd"));
    bytes[at] ^= 0x10;
}

fn litter(bytes: &mut Vec<u8>) {
    bytes.extend(b"what is this?");
}

fn wide(c: &mut Case) {
    // From a pipe, so that the size is not known and the window is what was asked for.
    let bytes = made_of_image(&["sh", "-c", "cat | zstd -q -1 --long=27"]);
    replaced(c, "balena.img.zst", &bytes);
}

/// A copy of the image with other bytes at `at`.
fn changed(at: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = std::fs::read(image()).unwrap();
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

fn foreign_map(c: &mut Case) {
    let other = c.rig.beside("other.img");
    std::fs::write(&other, changed(9 * MIB + 8192, b"other")).unwrap();
    let map = c.rig.root().join("opt/balena.img.bmap");
    tool(&["bmaptool", "-q", "create", "-o", map.to_str().unwrap(), other.to_str().unwrap()]);
    names(c, "/opt/balena.img");
}

fn checksum(c: &mut Case, text: &str) {
    c.rig.put("opt/balena.img.sha256", text);
    names(c, "/opt/balena.img");
}

fn other_label(c: &mut Case) {
    // The volume name in the superblock of the boot partition (ext4, "Layout").
    let bytes = changed(MIB + 1024 + 120, b"other-boot");
    replaced(c, "balena.img", &bytes);
}
