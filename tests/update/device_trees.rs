//! Device trees of the owner, and other files of the boot folder that an update carries.

use std::path::Path;

use serde_json::{Value, json};

use crate::image::Release;
use crate::kit::device_tree::model;
use crate::kit::image_archive::digest;
use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, stderr, stdout};

const RUNNING: &str = "mnt/sysroot/active/current/boot";
const NEW: &str = "mnt/sysroot/inactive/current/boot";
const CONF: &str = "etc/copal/update.conf";
const NAMES: &str = "mnt/boot/extra_uEnv.txt";

fn owners() -> Vec<u8> {
    model("the owner's", 0)
}

/// The tree of the new release.
fn tree(rig: &Rig) -> Vec<u8> {
    std::fs::read(rig.at(&format!("{NEW}/own.dtb"))).unwrap()
}

/// With a device tree of the owner in the running release's boot folder.
fn rig() -> Rig {
    let rig = Rig::ready();
    rig.put(&format!("{RUNNING}/own.dtb"), owners());
    rig.put(NAMES, "custom_fdt_file=own.dtb\n");
    rig
}

fn update(rig: &Rig, more: &[&str]) -> (i32, String) {
    let out = rig.run(&[&["copal", "update", "-f", "/mnt/data/os.tar"], more].concat());
    (out.status.code().unwrap(), stdout(&out) + &stderr(&out))
}

/// Names, links and files of the slot, without what the engine writes by itself.
fn slot(rig: &Rig) -> String {
    rig.ok(&[
        "sh",
        "-c",
        "cd /mnt/sysroot/inactive && find . -path ./balena -prune -o -printf '%p %l %s %T@ %i\\n' | sort",
    ])
}

fn last_record(rig: &Rig) -> Value {
    serde_json::from_str(rig.text("mnt/state/copal/history.jsonl").lines().last().unwrap()).unwrap()
}

#[test]
fn a_device_tree_survives_an_update() {
    needs!(can_run);
    let rig = rig();
    rig.put(CONF, "CARRY_BOOT=firmware/cal.bin\nDEVICE_TREE_REQUIRED=1\n");
    rig.put(&format!("{RUNNING}/firmware/cal.bin"), "calibration");
    let running =
        || rig.ok(&["sh", "-c", "cd /mnt/sysroot/active && find . -type f -exec md5sum {} + | sort"]);
    let before = running();
    let (status, log) = update(&rig, &[]);
    assert_eq!(status, 0, "{log}");
    crate::layout::assert_slot(&rig, "5\n");
    assert_eq!(tree(&rig), owners());
    assert_eq!(rig.text(&format!("{NEW}/firmware/cal.bin")), "calibration");
    assert_eq!(running(), before, "a rollback finds what it had");
    let file = |name: &str, text: &[u8], origin: &str| json!({"name": name, "size": text.len(), "sha256": digest(text), "origin": origin});
    let expected = [
        file("own.dtb", &owners(), "custom_fdt_file"),
        file("firmware/cal.bin", b"calibration", "CARRY_BOOT"),
    ];
    assert_eq!(last_record(&rig)["carried"], json!(expected));

    // A release with a file of that name: its own counts, with a warning; unless the owner has pinned it.
    let release = Release::new();
    let theirs = model("the release's", 0);
    release.put("boot/own.dtb", &theirs);
    release.archive("registry/os:2", &rig.at("mnt/data/os.tar"));
    for (pins, expected) in [("# none\n", &theirs), ("own.dtb\n", &owners())] {
        rig.put("mnt/boot/copal/keep", pins);
        let (status, log) = update(&rig, &[]);
        assert_eq!(status, 0, "{log}");
        assert_eq!(tree(&rig), *expected, "{log}");
        let warned = log.contains("boot/own.dtb of the new release takes the place of your own");
        assert_eq!(warned, *expected == theirs, "{log}");
    }
    assert_eq!(last_record(&rig)["carried"].as_array().unwrap().len(), 2);
    assert_eq!(running(), before);
}

#[test]
fn an_archive_without_the_tree_that_the_board_needs_changes_nothing() {
    needs!(can_run);
    let rig = rig();
    rig.put("mnt/sysroot/inactive/hostapps/old/boot/x", "");
    rig.ok(&["ln", "-s", "hostapps/old", "/mnt/sysroot/inactive/current"]);
    rig.ok(&["docker", "-H", "unix:///var/run/balena-host.sock", "load", "-i", "/mnt/data/os.tar"]);
    let images = || stdout(&rig.docker(&["images", "--quiet"]));
    let (before, kept) = (slot(&rig), images());
    let refused = |words: &[&str]| {
        let (status, log) = update(&rig, &[]);
        assert_eq!(status, 3, "{log}");
        assert!(words.iter().all(|word| log.contains(word)), "{words:?}: {log}");
        assert_eq!(
            (slot(&rig), images(), rig.said()),
            (before.clone(), kept.clone(), String::new()),
            "{log}"
        );
        assert_eq!(rig.selected(), ("2".into(), "0".into()));
        assert!(!rig.has("mnt/state/copal/history.jsonl") && !rig.has(&format!("{NEW}/none.dtb")));
    };
    rig.put(NAMES, "custom_fdt_file=none.dtb\n");
    rig.put("mnt/boot/none.dtb", "where nobody looks");
    rig.put(CONF, "DEVICE_TREE_REQUIRED=1\n");
    refused(&[
        "[device-tree-missing]",
        "none.dtb, which custom_fdt_file names",
        "it is on the boot partition",
    ]);
    // With a damaged tree the bootloader may stop.
    rig.put(NAMES, "custom_fdt_file=own.dtb\n");
    let damaged = &owners()[..90];
    rig.put(&format!("{RUNNING}/own.dtb"), damaged);
    refused(&["[device-tree-invalid]", "own.dtb", "shorter than its header says"]);
    rig.put(&format!("{RUNNING}/own.dtb"), owners());
    // What the update must carry does not fit.
    rig.put(NAMES, "custom_fdt_file=own.dtb\n");
    rig.put(CONF, "CARRY_BOOT=\"a.bin b.bin c.bin d.bin e.bin\"\n");
    rig.ok(&["sh", "-c", &format!("cd /{RUNNING} && for n in a b c d e; do truncate -s 60M $n.bin; done")]);
    refused(&["[slot-full]", "CARRY_BOOT", "the other root partition has no space"]);

    // The device knows better than the board's line, or its owner does.
    rig.put(NAMES, "custom_fdt_file=none.dtb\n");
    for (conf, more, words) in [
        ("DEVICE_TREE_REQUIRED=0\n", &[][..], "the bootloader may take its default"),
        ("DEVICE_TREE_REQUIRED=1\n", &["--force"], "--force: continuing although"),
    ] {
        rig.put(CONF, conf);
        let (status, log) = update(&rig, more);
        assert_eq!(status, 0, "{conf}: {log}");
        assert_eq!(log.matches(words).count(), 1, "{conf}: {log}");
    }
}

#[test]
fn a_pull_without_the_tree_that_the_board_needs_selects_nothing() {
    needs!(can_run);
    let rig = rig();
    let (mut registry, name) = rig.registry();
    rig.put("mnt/sysroot/inactive/hostapps/old/boot/x", "");
    rig.ok(&["ln", "-s", "hostapps/old", "/mnt/sysroot/inactive/current"]);
    let pull = |more: &[&str]| {
        let out = rig.run(&[&["copal", "update", "-i", &name], more].concat());
        (out.status.code().unwrap(), stdout(&out) + &stderr(&out))
    };
    rig.put(CONF, "DEVICE_TREE_REQUIRED=1\n");
    rig.put(NAMES, "custom_fdt_file=none.dtb\n");
    let (status, log) = pull(&[]);
    assert_eq!(status, 4, "{log}");
    assert!(log.contains("[device-tree-missing]") && log.contains("none.dtb"), "{log}");
    assert_eq!(rig.link("mnt/sysroot/inactive/current"), "hostapps/old", "{log}");
    assert!(!Path::new(&rig.at(NEW)).exists(), "{log}");
    assert_eq!((rig.selected(), rig.said()), (("2".into(), "0".into()), String::new()), "{log}");
    assert_eq!(last_record(&rig)["error"]["code"], "device-tree-missing");

    // With a damaged tree the bootloader may stop.
    rig.put(NAMES, "custom_fdt_file=own.dtb\n");
    let damaged = &owners()[..90];
    rig.put(&format!("{RUNNING}/own.dtb"), damaged);
    let (status, log) = pull(&[]);
    assert_eq!(status, 4, "{log}");
    assert!(log.contains("[device-tree-invalid]") && log.contains("own.dtb"), "{log}");
    assert_eq!(rig.link("mnt/sysroot/inactive/current"), "hostapps/old", "{log}");

    // Too large a tree for any bootloader would be lost.
    rig.put(NAMES, "custom_fdt_file=own.dtb\n");
    rig.put(&format!("{RUNNING}/own.dtb"), vec![b'x'; 9 << 20]);
    let (status, log) = pull(&[]);
    assert_eq!(status, 4, "{log}");
    assert!(log.contains("[device-tree-missing]") && log.contains("more than 8 MiB"), "{log}");
    assert_eq!(rig.link("mnt/sysroot/inactive/current"), "hostapps/old", "{log}");

    rig.put(&format!("{RUNNING}/own.dtb"), owners());
    let (status, log) = pull(&[]);
    assert_eq!(status, 0, "{log}");
    crate::layout::assert_slot(&rig, "5\n");
    assert_eq!(tree(&rig), owners());
    drop(registry.kill());
    drop(registry.wait());
}
