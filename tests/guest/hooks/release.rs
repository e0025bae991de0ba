//! What is on a boot partition: two releases, the files of the owner, the selection of a root.

use std::collections::BTreeMap;

use md5::{Digest as _, Md5};

use crate::bootpart::text;
use crate::support::fat::{self, Node};

pub(super) const FINGERPRINT: &str = "balenaos.fingerprint";

pub(super) type Files = BTreeMap<&'static str, Vec<u8>>;

/// A path with its content in the old and in the new release.
pub(super) fn releases() -> [Files; 2] {
    let sizes: [(&str, usize, usize); 12] = [
        ("EFI/BOOT/bootx64.efi", 23_000, 20_000),
        ("EFI/BOOT/grub.cfg", 1200, 1300),
        ("EFI/BOOT/grub_extraenv", 0, 1024),
        ("extra_uEnv.txt", 0, 300),
        ("folder of its own/deeper/New.bin", 0, 900),
        ("grub/grub.cfg", 1200, 1300),
        ("grub/grub_extraenv", 0, 1024),
        ("overlays/a board with a long name.dtbo", 2000, 2600),
        ("overlays/brand new overlay.dtbo", 0, 1500),
        ("overlays/OLD.DTB", 700, 0),
        ("splash/balena-logo.png", 900, 1000),
        ("vmlinuz", 60_000, 70_000),
    ];
    let mut releases = [Files::new(), Files::new()];
    for (path, old, new) in sizes {
        for (release, (tag, size)) in releases.iter_mut().zip([("old", old), ("new", new)]) {
            if size > 0 {
                release.insert(path, text(&format!("{tag} {path}"), size));
            }
        }
    }
    for release in &mut releases {
        release.insert("overlays/unchanged.dtbo", text("unchanged", 3000));
        release.insert("config.txt", text("of a release", 80));
    }
    releases
}

/// The owner's own, and what older releases have left.
pub(super) fn owned() -> Files {
    Files::from([
        ("config.json", b"{\"uuid\":\"abc\"}\n".to_vec()),
        ("config.txt", text("of the owner", 100)),
        ("splash/balena-logo.png", text("logo of the owner", 4000)),
        ("some notes.txt", text("notes", 1000)),
        ("EFI/BOOT/bootx64.efi.secureboot", text("secure", 9000)),
        (FINGERPRINT, b"00000000000000000000000000000000  vmlinuz\n".to_vec()),
    ])
}

/// Never deployed over what is there.
pub(super) fn is_skipped(path: &str) -> bool {
    ["config.txt", "splash/balena-logo.png", "extra_uEnv.txt"].contains(&path)
        || path.ends_with("grub_extraenv")
}

/// What `1-bootfiles` makes of a boot partition.
pub(super) fn deployed(mut there: Files, release: &Files) -> Files {
    for (path, data) in release {
        if !(there.contains_key(path) && is_skipped(path)) {
            there.insert(path, data.clone());
        }
    }
    there
}

pub(super) fn fingerprint(files: &Files, selection: &[(&'static str, Vec<u8>)]) -> Vec<u8> {
    let mut all = files.clone();
    all.extend(selection.iter().cloned());
    all.retain(|path, _| ![FINGERPRINT, "config.json"].contains(path));
    let line = |(path, data): (&&str, &Vec<u8>)| {
        let digest: String = Md5::digest(data).iter().map(|b| format!("{b:02x}")).collect();
        format!("{digest}  {path}\n")
    };
    all.iter().map(line).collect::<String>().into_bytes()
}

/// An environment block.
pub(super) fn block(lines: &str) -> Vec<u8> {
    let mut block = format!("# GRUB Environment Block\n{lines}").into_bytes();
    block.resize(1024, b'#');
    block
}

pub(super) fn uenv(root: &str, trial: &str) -> Vec<u8> {
    format!("resin_root_part={root}\nupgrade_available={trial}\n").into_bytes()
}

/// Which root is selected, on trial or not.
pub(super) type Selected = (char, bool);

pub(super) const RUNNING: Selected = ('A', false);
pub(super) const TRIAL: Selected = ('B', true);

pub(super) const UENV: &str = "resinOS_uEnv.txt";
pub(super) const COUNT: &str = "bootcount.env";
pub(super) const BOOTENV: &str = "bootenv";
pub(super) const GRUBENV: &str = "EFI/BOOT/grubenv";

pub(super) fn file<'t>(tree: &'t fat::Tree, path: &str) -> Option<&'t [u8]> {
    match tree.nodes.get(path) {
        Some(Node::File(Ok(data))) => Some(data),
        Some(other) => panic!("{path}: {other:?}"),
        None => None,
    }
}

pub(super) fn value<'t>(text: &'t str, key: &str) -> Result<&'t str, String> {
    let mut values = text.lines().filter_map(|l| l.strip_prefix(key)?.strip_prefix('='));
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        other => Err(format!("{key}: {other:?} in {text:?}")),
    }
}

/// The selection as the bootloaders read it: their files in the order of detection.
pub(super) fn selected(tree: &fat::Tree) -> Result<(Selected, u32), String> {
    let pick = |text: &str| {
        Ok::<_, String>((
            value(text, "resin_root_part")?.to_owned(),
            value(text, "upgrade_available")? == "1",
        ))
    };
    let of_block = |data: &[u8]| {
        let text = String::from_utf8_lossy(data).into_owned();
        if data.len() != 1024 || !text.starts_with("# GRUB Environment Block\n") {
            return Err(format!("no environment block: {} bytes", data.len()));
        }
        Ok((pick(&text)?, value(&text, "bootcount")?.parse::<u32>().map_err(|e| e.to_string())?))
    };
    let ((root, trial), count) = if let Some(data) = file(tree, UENV) {
        let count = file(tree, COUNT).map_or(Ok(0), |data| {
            let text = String::from_utf8_lossy(data).replace('\0', "");
            u32::from_str_radix(value(&text, "bootcount")?, 16).map_err(|e| e.to_string())
        })?;
        (pick(&String::from_utf8_lossy(data))?, count)
    } else if let Some(data) = file(tree, BOOTENV) {
        of_block(data)?
    } else if let Some(data) = file(tree, GRUBENV) {
        of_block(data)?
    } else {
        // What no bootloader of these tests has: each begins with its file.
        return Err("no selection".to_owned());
    };
    match root.as_str() {
        "2" | "A" => Ok((('A', trial), count)),
        "3" | "B" => Ok((('B', trial), count)),
        other => Err(format!("root {other}")),
    }
}
