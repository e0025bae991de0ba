//! Device trees in `copal status` and `copal doctor`.

use std::fs;

use serde_json::Value;

use crate::kit::device_tree::model;
use crate::kit::tree::Tree;
use crate::status::{copal, device, finds, snapshot, status};

const ROOT_BOOT: &str = "/mnt/sysroot/active/balena/volumes/v/_data";
const RELEASE_BOOT: &str = "/mnt/sysroot/active/balena/overlay2/top/diff/boot";

/// A device with trees of the owner and of the release.
fn with_trees(conf: &str) -> Tree {
    let mut t = device();
    t.file("/etc/copal/update.conf", conf);
    t.file(
        "/mnt/boot/extra_uEnv.txt",
        "custom_fdt_file=mine.dtb\noverlay_files=changed.dtbo,theirs.dtbo\nfdtfile=gone.dtb\nfdt_file=../x.dtb\n",
    );
    t.file(&format!("{ROOT_BOOT}/mine.dtb"), "");
    fs::write(t.paths().at(format!("{ROOT_BOOT}/mine.dtb")), model("mine", 0)).unwrap();
    t.file(&format!("{ROOT_BOOT}/changed.dtbo"), "own").file(&format!("{RELEASE_BOOT}/changed.dtbo"), "old");
    t.file(&format!("{ROOT_BOOT}/theirs.dtbo"), "same").file(&format!("{RELEASE_BOOT}/theirs.dtbo"), "same");
    fs::write(t.paths().at("/mnt/boot/gone.dtb"), model("on the wrong partition", 0)).unwrap();
    t
}

#[test]
fn on_the_uefi_of_a_tegra_a_name_in_a_comment_counts() {
    let mut t = with_trees("");
    t.file("/mnt/boot/extra_uEnv.txt", "custom_fdt_file=mine.dtb\n# custom_fdt_file=last.dtb\n");
    let counts = |t: &Tree| -> Vec<(String, bool)> {
        let trees = status(t)["device_trees"].as_array().unwrap().clone();
        trees.iter().map(|tree| (tree["name"].as_str().unwrap().into(), tree["counts"] == true)).collect()
    };
    assert_eq!(counts(&t), [("mine.dtb".into(), true), ("last.dtb".into(), false)]);
    t.file("/sys/firmware/devicetree/base/compatible", "nvidia,p3737-0000\0nvidia,tegra234\0");
    t.folder("/sys/firmware/efi/efivars");
    assert_eq!(counts(&t), [("mine.dtb".into(), false), ("last.dtb".into(), true)]);
}

#[test]
fn device_trees_are_shown_with_size_digest_and_origin() {
    let mut t = with_trees("DEVICE_TREE_KEYS='custom_fdt_file overlay_files'\n");
    t.file(&format!("{ROOT_BOOT}/mine.dtb"), "abc");
    let before = snapshot(&t);
    let s = status(&t);
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let seen: Vec<_> = s["device_trees"].as_array().unwrap().iter().collect();
    let of = |n: usize, key: &str| seen[n][key].clone();
    let names: Vec<_> = (0..seen.len()).map(|n| (of(n, "key"), of(n, "name"), of(n, "origin"))).collect();
    let expected = [
        ("custom_fdt_file", "mine.dtb", "owner"),
        ("overlay_files", "changed.dtbo", "owner"),
        ("overlay_files", "theirs.dtbo", "release"),
        ("fdtfile", "gone.dtb", "missing"),
    ];
    assert_eq!(names, expected.map(|(k, n, o)| (k.into(), n.into(), o.into())), "{s}");
    assert_eq!((of(0, "size"), of(0, "sha256")), (3.into(), abc.into()));
    assert!(of(0, "file").as_str().unwrap().ends_with("/mnt/sysroot/active/current/boot/mine.dtb"), "{s}");
    assert_eq!(
        (of(0, "counts"), of(3, "counts"), of(3, "required")),
        (true.into(), false.into(), false.into())
    );
    assert_eq!((of(3, "size"), of(3, "sha256"), of(3, "file")), (Value::Null, Value::Null, Value::Null));
    let (_, out, _) = copal(&t, &["status"]);
    assert!(
        out.contains(&format!("tree     custom_fdt_file mine.dtb: of the owner, 3 B, SHA-256 {abc}\n")),
        "{out}"
    );
    assert!(out.contains("tree     fdtfile gone.dtb: missing\n"), "{out}");

    // Where the bootloader looks there, the file is found on the boot partition.
    fs::write(t.paths().at("/etc/copal/update.conf"), "DEVICE_TREE_PLACE=boot-first\n").unwrap();
    let s = status(&t);
    assert_eq!(s["device_trees"][3]["origin"], "boot-partition", "{s}");
    fs::write(t.paths().at("/etc/copal/update.conf"), "").unwrap();
    assert_eq!(snapshot(&t).len(), before.len(), "nothing may be added");
    assert_eq!(status(&device())["device_trees"], serde_json::json!([]));
}

#[test]
fn the_doctor_names_missing_trees_refused_names_and_stale_pins() {
    let t = with_trees("");
    finds(&t, "device-tree", "ok", "custom_fdt_file names mine.dtb: it is ");
    finds(&t, "device-tree", "problem", "changed.dtbo, which overlay_files names: it is shorter");
    finds(&t, "device-tree", "warning", "fdtfile names gone.dtb, which is not in ");
    finds(&t, "device-tree", "warning", "/mnt/boot/gone.dtb is not where this bootloader looks");
    finds(&t, "device-tree", "warning", "fdt_file names \"../x.dtb\": that is not a plain path");
    let mut t = device();
    t.file("/mnt/boot/extra_uEnv.txt", "fdtfile=a.dtb\r\n");
    finds(&t, "device-tree", "warning", "fdtfile names \"a.dtb\\r\", with the carriage return of its line");

    let t = with_trees("DEVICE_TREE_KEYS=fdtfile\nDEVICE_TREE_REQUIRED=1\n");
    finds(&t, "device-tree", "problem", "fdtfile names gone.dtb");
    let (code, out, _) = copal(&t, &["doctor"]);
    assert!(code == 1 && out.contains("[device-tree-missing]"), "{out}");
    // There it is found.
    let t = with_trees("DEVICE_TREE_KEYS=fdtfile\nDEVICE_TREE_REQUIRED=1\nDEVICE_TREE_PLACE=boot\n");
    finds(&t, "device-tree", "ok", "fdtfile names gone.dtb: it is ");
    // What another setting names refuses nothing.
    let t = with_trees("DEVICE_TREE_KEYS=custom_fdt_file\nDEVICE_TREE_REQUIRED=1\n");
    finds(&t, "device-tree", "warning", "fdtfile names gone.dtb");

    let mut t = with_trees("DEVICE_TREE_PLACE=nowhere\n");
    finds(&t, "device-tree", "warning", "DEVICE_TREE_PLACE");
    t.file("/mnt/boot/copal/keep", "changed.dtbo\nnone.dtb\n../y\n");
    finds(&t, "device-tree", "ok", "the pin changed.dtbo keeps ");
    finds(&t, "device-tree", "ok", "and not the release's file");
    finds(&t, "device-tree", "warning", "the pin none.dtb is stale");
    finds(&t, "device-tree", "warning", "copal/keep, line 3");
    finds(&device(), "device-tree", "ok", "no setting names a device tree");
}

/// Whether the kernel got the requested tree: it has properties that the bootloader's default lacks.
#[test]
fn the_running_tree_is_compared_with_the_named_one() {
    let mut t = with_trees("DEVICE_TREE_DEFAULT=board.dtb\n");
    assert_eq!(status(&t)["live_tree"], Value::Null);
    let board = model("board", 0);
    t.file("/sys/firmware/fdt", "").file(&format!("{ROOT_BOOT}/board.dtb"), "");
    fs::write(t.paths().at(format!("{ROOT_BOOT}/board.dtb")), &board).unwrap();
    for (tree, is_named) in [(model("mine", 0), true), (board, false)] {
        fs::write(t.paths().at("/sys/firmware/fdt"), &tree).unwrap();
        let s = status(&t);
        let name = if is_named { "mine" } else { "board" };
        let expected = serde_json::json!({"model": name, "named": "mine.dtb", "is_named": is_named});
        assert_eq!(s["live_tree"], expected, "{s}");
        let (_, out, _) = copal(&t, &["doctor"]);
        assert_eq!(out.contains("another device tree than mine.dtb"), !is_named, "{out}");
    }
    fs::write(t.paths().at("/etc/copal/update.conf"), "").unwrap();
    assert_eq!(status(&t)["live_tree"]["is_named"], Value::Null);
    let (_, out, _) = copal(&t, &["status"]);
    assert!(
        out.contains("kernel   has the device tree \"board\"; whether it is of mine.dtb is unknown\n"),
        "{out}"
    );
}
