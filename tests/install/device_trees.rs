//! The owner's device trees: from the medium to where the bootloader of the installed system looks for them.

use std::fs;
use std::os::unix::fs::symlink;

use crate::kit::needs::needs;
use crate::kit::process::stderr;
use crate::rig::{MIB, Rig, can_run, image_in};
use crate::{assert_image, assert_ok, schema};

/// The folder that `/boot` of the installed system is.
const VOLUME: &str = "/balena/volumes/v/_data";

/// A system whose image has a hostapp: with its own tree, a tree that the owner has too, and settings.
fn rig(update_conf: &str) -> Rig {
    let rig = Rig::new();
    let dir = rig.beside("image");
    let image = image_in(&dir, |dir| {
        let root = dir.join("root");
        let volume = root.join(VOLUME.trim_start_matches('/'));
        fs::create_dir_all(volume.join("overlays")).unwrap();
        fs::create_dir_all(root.join("hostapps/c0ffee")).unwrap();
        symlink("../../balena/volumes/v/_data", root.join("hostapps/c0ffee/boot")).unwrap();
        symlink("hostapps/c0ffee", root.join("current")).unwrap();
        fs::write(volume.join("Image"), "kernel").unwrap();
        fs::write(volume.join("release.dtb"), "release").unwrap();
        fs::write(volume.join("own.dtb"), "the release's own").unwrap();
        fs::write(dir.join("boot/extra_uEnv.txt"), "custom_fdt_file=release.dtb\n").unwrap();
    });
    fs::remove_file(rig.root().join("opt/balena.img")).unwrap();
    fs::rename(image, rig.root().join("opt/balena.img")).unwrap();
    rig.put("etc/copal/update.conf", update_conf);
    rig
}

const ALL_KEYS: &str = "DEVICE_TREE_KEYS=\"custom_fdt_file fdt_file fdtfile fdtofile\"\n";

fn install(rig: &Rig) -> (serde_json::Value, String) {
    let out = rig.run(&["/copal", "flash", "--no-power-off", "-v"]);
    assert_ok(&out);
    let receipt = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(schema::complaints(&receipt), "");
    (receipt, stderr(&out))
}

#[test]
fn a_named_tree_goes_into_the_boot_folder_of_the_root() {
    needs!(can_run);
    let rig = rig(ALL_KEYS);
    let settings = "custom_fdt_file=own.dtb\nfdtofile=overlays/new/one.dtbo\nfdtfile=release.dtb\nx=1\n";
    rig.boot("extra_uEnv.txt", settings);
    rig.boot("own.dtb", "the owner's");
    rig.boot("overlays/new/one.dtbo", "overlay");
    rig.boot("other.dtb", "not named");
    let (receipt, log) = install(&rig);
    let disk = &rig.disk;
    assert_eq!(disk.boot_text("/extra_uEnv.txt").unwrap(), settings);
    assert_eq!(disk.root_text(&format!("{VOLUME}/own.dtb")).unwrap(), "the owner's");
    assert_eq!(disk.root_text(&format!("{VOLUME}/overlays/new/one.dtbo")).unwrap(), "overlay");
    assert_eq!(disk.root_text(&format!("{VOLUME}/release.dtb")).unwrap(), "release");
    assert_eq!(disk.root_text(&format!("{VOLUME}/other.dtb")), None);
    assert_eq!(disk.boot_file("/own.dtb"), None, "the bootloader does not look there");
    let written = |name: &str| log.find(&format!(": copy {name} to {name}")).expect(name);
    assert!(written("own.dtb") < written("extra_uEnv.txt"), "a pointer comes last: {log}");
    for name in ["extra_uEnv.txt", "own.dtb"] {
        assert!(log.contains(&format!("{name} of the medium replaces the image's")), "{name}: {log}");
    }
    let mut trees = receipt["device_trees"].as_array().unwrap().clone();
    trees.sort_by_key(|t| t["name"].to_string());
    assert_eq!(trees.len(), 3, "{trees:#?}");
    let own = format!("{:#}", trees[1]);
    for word in ["\"own.dtb\"", "\"boot-partition\"", "11", "false", OWN_SHA256] {
        assert!(own.contains(word), "{word}: {own}");
    }
    assert_eq!(trees[2]["origin"], "image", "{trees:#?}");
    // Both file systems are whole.
    let (boot, root) = (MIB..9 * MIB, 9 * MIB..25 * MIB);
    for part in [boot, root] {
        let file = rig.beside("part");
        fs::write(&file, &fs::read(&disk.file).unwrap()[part]).unwrap();
        crate::rig::tool(&["e2fsck", "-fn", file.to_str().unwrap()]);
    }
}

/// `printf "the owner's" | sha256sum`
const OWN_SHA256: &str = "8b37336c28c7bc57744c0c486b81ecf587aa19221dc1769fd8b72ec40ad63035";

#[test]
fn where_the_bootloader_looks_on_the_boot_partition_a_tree_goes_there() {
    needs!(can_run);
    for place in ["boot", "boot-first"] {
        let rig = rig(&format!("DEVICE_TREE_PLACE={place}\n"));
        rig.boot("extra_uEnv.txt", "custom_fdt_file=own.dtb\n");
        rig.boot("own.dtb", "the owner's");
        let (receipt, log) = install(&rig);
        assert_eq!(rig.disk.boot_text("/own.dtb").unwrap(), "the owner's", "{place}");
        assert_eq!(rig.disk.boot_text("/extra_uEnv.txt").unwrap(), "custom_fdt_file=own.dtb\n", "{place}");
        assert_eq!(receipt["device_trees"][0]["on_boot_partition"], true, "{place}");
        let written = |name: &str| log.find(&format!(": copy {name} to {name}")).expect(name);
        assert!(written("own.dtb") < written("extra_uEnv.txt"), "{place}: a pointer comes last: {log}");
        assert!(!log.contains("internal_root"), "{place}: the root is not needed: {log}");
    }
}

/// Images bring an empty `extra_uEnv.txt`, also those of media.
#[test]
fn where_nothing_is_named_nothing_changes() {
    needs!(can_run);
    let rig = rig("DEVICE_TREE_REQUIRED=1\n");
    rig.boot("extra_uEnv.txt", "");
    rig.boot("own.dtb", "the owner's");
    let image = fs::read(rig.root().join("opt/balena.img")).unwrap();
    let (receipt, log) = install(&rig);
    let disk = fs::read(&rig.disk.file).unwrap();
    assert!(disk[9 * MIB..32 * MIB] == image[9 * MIB..], "the root was written to");
    assert_eq!(rig.disk.boot_text("/extra_uEnv.txt").unwrap(), "custom_fdt_file=release.dtb\n");
    assert_eq!(receipt.get("device_trees"), None);
    assert!(!log.contains("internal_root"), "{log}");
}

#[test]
fn a_setting_without_a_device_tree_needs_no_root() {
    needs!(can_run);
    // An image without a hostapp.
    let rig = Rig::new();
    rig.boot("extra_uEnv.txt", "mine=1\nextra_os_cmdline=quiet\r\n");
    let (_, log) = install(&rig);
    assert_image(&rig);
    // It is the owner's: it stays as it is.
    assert_eq!(rig.disk.boot_text("/extra_uEnv.txt").unwrap(), "mine=1\nextra_os_cmdline=quiet\r\n");
    assert!(log.contains("extra_uEnv.txt, line 2: the carriage return"), "{log}");
}

#[test]
fn a_name_without_a_file_is_a_warning() {
    needs!(can_run);
    let rig = rig(ALL_KEYS);
    rig.boot(
        "extra_uEnv.txt",
        "custom_fdt_file=gone.dtb\nfdtfile=../etc/x.dtb\nfdt_file=release.dtb\nfdtofile=Image\n",
    );
    rig.put("mnt/etc/x.dtb", "outside");
    rig.boot("Image", "not the release's kernel");
    let (receipt, log) = install(&rig);
    assert!(log.contains("gone.dtb, which is neither on the medium nor in the image"), "{log}");
    assert!(log.contains("../etc/x.dtb is no plain path"), "{log}");
    assert!(log.contains("fdtofile=Image is no device tree"), "{log}");
    assert_eq!(rig.disk.root_text(&format!("{VOLUME}/Image")).unwrap(), "kernel");
    assert!(!log.contains("release.dtb, which is neither"), "{log}");
    assert_eq!(receipt["device_trees"].as_array().unwrap().len(), 1, "{receipt:#}");
}

/// A bootloader that needs the file: the disk is not even opened for writing.
#[test]
fn a_needed_tree_that_is_missing_is_refused_before_the_first_write() {
    needs!(can_run);
    let rig = rig("DEVICE_TREE_REQUIRED=1\nDEVICE_TREE_KEYS=fdtfile\n");
    rig.boot("extra_uEnv.txt", "custom_fdt_file=own.dtb\nfdtfile=gone.dtb\n");
    let before = fs::read(&rig.disk.file).unwrap();
    let out = rig.run(&["/copal", "flash", "--no-power-off"]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(3), "{log}");
    for word in ["[device-tree-missing]", "gone.dtb", "/mnt/boot", "extra_uEnv.txt"] {
        assert!(log.contains(word), "{word}: {log}");
    }
    assert!(fs::read(&rig.disk.file).unwrap() == before);

    // The medium itself has booted with it: what the image lacks comes from there.
    rig.put("boot/gone.dtb", "of the medium's system");
    rig.put("boot/own.dtb", "the medium's own");
    install(&rig);
    assert_eq!(rig.disk.root_text(&format!("{VOLUME}/gone.dtb")).unwrap(), "of the medium's system");
    assert_eq!(rig.disk.root_text(&format!("{VOLUME}/own.dtb")).unwrap(), "the release's own");
}

/// An image without the root that the files belong into, as far as that is known before it is written.
#[test]
fn an_image_without_the_root_is_refused_and_one_that_is_not_read_yet_is_taken() {
    needs!(can_run);
    let rig = rig("");
    rig.boot("extra_uEnv.txt", "custom_fdt_file=own.dtb\n");
    rig.boot("own.dtb", "the owner's");
    let image = rig.root().join("opt/balena.img");
    let label = |label: &str| {
        let partition = format!("{}?offset={}", image.display(), 9 * MIB);
        crate::rig::tool(&["e2label", &partition, label]);
    };
    label("other");
    let before = fs::read(&rig.disk.file).unwrap();
    let out = rig.run(&["/copal", "flash", "--no-power-off"]);
    let log = stderr(&out);
    assert_eq!(out.status.code(), Some(3), "{log}");
    assert!(log.contains("[device-tree-missing]") && log.contains("resin-rootA"), "{log}");
    assert!(fs::read(&rig.disk.file).unwrap() == before);

    label("resin-rootA");
    crate::rig::tool(&["gzip", "-1", image.to_str().unwrap()]);
    let out = rig.run(&["/copal", "flash", "--no-power-off", "--single-pass"]);
    assert_ok(&out);
    assert_eq!(rig.disk.root_text(&format!("{VOLUME}/own.dtb")).unwrap(), "the owner's");
}

#[test]
fn a_tree_that_does_not_fit_leaves_no_half_installed_disk() {
    needs!(can_run);
    let rig = rig("");
    rig.boot("extra_uEnv.txt", "custom_fdt_file=own.dtb\n");
    rig.boot("own.dtb", &"x".repeat(16 * MIB));
    let text = crate::undone::undone(&rig, "boot-partition-full", &["/tmp/internal_root/balena/volumes"]);
    assert!(!text.contains("extra_uEnv.txt to extra_uEnv.txt"), "the pointer comes last: {text}");
}
