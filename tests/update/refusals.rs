//! Refusals: said early, with nothing changed.

use std::fs;
use std::process::{Command, Output};

use serde_json::json;

use crate::kit::image_archive::{Made, digest, elf, pack, tar_of};
use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, stderr, stdout};

/// Refused with this code, and everything is as it was.
fn assert_refused(rig: &Rig, out: &Output, code: &str) {
    let log = stderr(out);
    assert_eq!(out.status.code(), Some(3), "{log}");
    assert!(log.contains(&format!("[{code}]")), "{code}: {log}");
    assert!(rig.has("mnt/sysroot/inactive/hostapps/old"), "{log}");
    assert_eq!(rig.said(), "", "{log}");
}

const UPDATE: [&str; 4] = ["copal", "update", "-f", "/mnt/data/os.tar"];

fn rig() -> Rig {
    let rig = Rig::ready();
    rig.put("mnt/sysroot/inactive/hostapps/old/x", "");
    rig
}

#[test]
fn the_only_proven_system_is_not_erased() {
    needs!(can_run);
    let rig = rig();
    for (root, upgrade, what) in [("2", "1", "on trial"), ("3", "1", "fell back")] {
        rig.put(
            "mnt/boot/resinOS_uEnv.txt",
            format!("resin_root_part={root}\nupgrade_available={upgrade}\n"),
        );
        let out = rig.run(&UPDATE);
        assert_refused(&rig, &out, "update-refused");
        assert!(stderr(&out).contains(what), "{}", stderr(&out));
        assert_eq!(rig.selected(), (root.into(), upgrade.into()));
    }
    rig.put("mnt/state/copal/rollback", "{\"target\":\"A\",\"kind\":\"health\"}\n");
    for more in [&[][..], &["--force"]] {
        assert_refused(&rig, &rig.run(&[&UPDATE, more].concat()), "update-refused");
    }
    rig.ok(&["rm", "/mnt/state/copal/rollback"]);
    // Whoever insists is told what that costs, and the way back is cut cleanly.
    let out = rig.run(&[&UPDATE[..], &["--force"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stderr(&out).contains("--force: updating although"), "{}", stderr(&out));
    assert!(rig.said().starts_with("current 0\nbefore 1\n"), "{}", rig.said());
}

#[test]
fn what_is_wrong_is_found_before_anything_changes() {
    needs!(can_run);
    let rig = rig();
    let update = |file: &str| rig.run(&["copal", "update", "-f", file]);
    let out = rig.command(&UPDATE).env("COPAL_HOOK_TIMEOUT", "soon").output().unwrap();
    assert!(stderr(&out).contains("[usage]") && out.status.code() == Some(2), "{}", stderr(&out));
    assert_eq!((rig.said().as_str(), rig.has("mnt/sysroot/inactive/hostapps/old")), ("", true));
    assert_refused(&rig, &update("/mnt/data/none.tar"), "image-missing");
    assert_refused(&rig, &update("/mnt/data"), "image-not-regular");
    rig.put("mnt/data/bad.tar", "not an archive");
    assert_refused(&rig, &update("/mnt/data/bad.tar"), "image-archive-invalid");
    rig.ok(&["sh", "-c", "head -c 1000000 /mnt/data/os.tar > /mnt/data/cut.tar"]);
    assert_refused(&rig, &update("/mnt/data/cut.tar"), "image-archive-invalid");
    rig.ok(&["cp", "/mnt/data/os.tar", "/mnt/sysroot/inactive/os.tar"]);
    assert_refused(&rig, &update("/mnt/sysroot/inactive/os.tar"), "image-not-regular");

    rig.ok(&["sh", "-c", "! dd if=/dev/zero of=/mnt/state/big bs=4k 2>/dev/null"]);
    assert_refused(&rig, &rig.run(&UPDATE), "state-unwritable");
    rig.ok(&["rm", "/mnt/state/big"]);

    for (point, code) in [
        ("/mnt/state", "state-unwritable"),
        ("/mnt/boot", "boot-state-unwritable"),
        ("/mnt/sysroot/inactive", "update-refused"),
    ] {
        if point == "/mnt/sysroot/inactive" {
            // The engine holds it open for writing.
            rig.ok(&["mount", "-o", "remount,ro,bind", point]);
        } else {
            rig.ok(&["mount", "-o", "remount,ro", point]);
        }
        assert_refused(&rig, &rig.run(&UPDATE), code);
        let bind = if point == "/mnt/sysroot/inactive" { "remount,rw,bind" } else { "remount,rw" };
        rig.ok(&["mount", "-o", bind, point]);
    }

    // Nothing is mounted there: without this it would look like a device whose bootloader was never told anything.
    let node = rig.ok(&["findmnt", "-no", "SOURCE", "/mnt/boot"]);
    rig.ok(&["umount", "/mnt/boot"]);
    assert_refused(&rig, &rig.run(&UPDATE), "boot-state-unwritable");
    assert_eq!(rig.names("mnt/boot"), [""; 0]);
    rig.ok(&["mount", node.trim(), "/mnt/boot"]);

    // Another engine, with somebody's data elsewhere.
    rig.ok(&["mount", "--bind", "/mnt/data", "/mnt/sysroot/inactive/balena"]);
    assert_refused(&rig, &rig.run(&UPDATE), "engine-failed");
    rig.ok(&["umount", "/mnt/sysroot/inactive/balena"]);

    let node = rig.ok(&["findmnt", "-no", "SOURCE", "/mnt/sysroot/active"]);
    rig.ok(&["mount", node.trim(), "/mnt/sysroot/inactive"]);
    let out = rig.run(&UPDATE);
    assert!(stderr(&out).contains("[slot-same]") && out.status.code() == Some(3), "{}", stderr(&out));
    rig.ok(&["umount", "/mnt/sysroot/inactive"]);
    assert_eq!(rig.selected(), ("2".into(), "0".into()));
}

fn image(init: &[u8]) -> Made {
    Made::new(vec![tar_of(&[("boot/init", 0o755, init), ("bin/x", 0o644, b"")])])
}

#[test]
fn what_an_archive_is_made_for_is_known_before_the_slot_is_emptied() {
    needs!(can_run);
    let rig = rig();
    // What the slot holds stays there.
    rig.ok(&["docker", "-H", "unix:///var/run/balena-host.sock", "load", "-i", "/mnt/data/os.tar"]);
    let images = || rig.ok(&["docker", "-H", "unix:///var/run/balena-host.sock", "images", "-aq"]);
    let before = images();
    assert_ne!(before, "");
    let refused = |archive: Vec<u8>, code: &str| {
        fs::write(rig.at("mnt/data/other.tar"), archive).unwrap();
        let out = rig.run(&["copal", "update", "-f", "/mnt/data/other.tar"]);
        assert_refused(&rig, &out, code);
        assert_eq!(images(), before, "{code}");
        let out = rig.run(&["hostapp-update", "-f", "/mnt/data/other.tar"]);
        assert_eq!(out.status.code(), Some(1), "{code}: {}", stderr(&out));
        assert_eq!(images(), before, "{code}");
    };
    let (own, same_family, other) = if cfg!(target_arch = "x86_64") { (62, 3, 183) } else { (183, 40, 62) };

    let members = image(b"#!/bin/sh").oci(true, &[]);
    refused(pack(&members), "image-archive-invalid");
    refused(Made::new(vec![tar_of(&[("boot/vmlinuz", 0o644, b"")])]).archive(&["a:1"]), "image-not-host-os");
    refused(image(&elf(other)).archive(&["a:1"]), "image-wrong-architecture");
    let mut damaged = image(&elf(own)).members(&["a:1"]);
    damaged[0].1.push(b' ');
    refused(pack(&damaged), "image-archive-invalid");
    // Its layer unpacks to more than the slot has several times over.
    let zeroes = Command::new("sh").args(["-c", "head -c 2G /dev/zero | gzip -1c"]).output().unwrap().stdout;
    let mut bomb = image(&elf(own)).members(&["a:1"]);
    let mut layer = tar::Header::new_gnu();
    layer.set_size(2 << 30);
    layer.set_cksum();
    let head = crate::kit::image_archive::gzip(layer.as_bytes());
    bomb[1].1 = [head, zeroes].concat();
    refused(pack(&bomb), "slot-full");
    // It has more files than the slot can have, and all of them are empty.
    let inodes: usize = rig.ok(&["stat", "-f", "-c", "%c", "/mnt/sysroot/inactive"]).trim().parse().unwrap();
    let names: Vec<String> = (0..inodes).map(|n| format!("many/{n}")).collect();
    let mut files: Vec<(&str, u32, &[u8])> =
        names.iter().map(|name| (name.as_str(), 0o644, &b""[..])).collect();
    files.push(("boot/init", 0o755, b"#!/bin/sh"));
    refused(Made::new(vec![tar_of(&files)]).archive(&["a:1"]), "slot-full");

    let base = format!("sha256:{}", digest(b"the image that runs"));
    let target = json!({ "rootfs": { "diff_ids": [base] } }).to_string();
    let delta = |base: &str| Made::delta(base, &target).archive(&["a:1"]);
    let store = "mnt/sysroot/active/balena/image/overlay2/imagedb/content/sha256";
    rig.put(&format!("{store}/{}", digest(b"another image")), "{}");
    for missing in [&base, "os:1"] {
        refused(delta(missing), "delta-base-missing");
    }
    assert_eq!(rig.selected(), ("2".into(), "0".into()));

    // These go on, until something else is amiss: the stand-in for the engine is none of balena's.
    rig.put(&format!("{store}/{}", digest(b"the image that runs")), "{}");
    let mut built_elsewhere = image(&elf(own));
    let config = String::from_utf8(built_elsewhere.config.clone()).unwrap();
    built_elsewhere.config = config.replace("\"architecture\":\"", "\"architecture\":\"s390x-").into_bytes();
    assert_ne!(built_elsewhere.config, config.as_bytes());
    for (archive, words) in [
        (built_elsewhere.archive(&["a:1"]), "mount the root of the new release"),
        (delta(&base), "it has no /boot/init [image-not-host-os]"),
        (image(&elf(own)).archive(&["a:1"]), "mount the root of the new release"),
        (image(&elf(same_family)).archive(&["a:1"]), "mount the root of the new release"),
        (image(b"#!/bin/false").archive(&["a:1"]), "mount the root of the new release"),
    ] {
        fs::write(rig.at("mnt/data/other.tar"), archive).unwrap();
        let out = rig.run(&["copal", "update", "-f", "/mnt/data/other.tar"]);
        assert_eq!(out.status.code(), Some(4), "{words}: {}", stderr(&out));
        assert!(stderr(&out).contains(words), "{words}: {}", stderr(&out));
    }
}

#[test]
fn a_boot_folder_that_must_stay_counts_against_the_slot() {
    needs!(can_run);
    let rig = rig();
    let slot = "mnt/sysroot/inactive";
    // It is in the slot already, and alone leaves space enough.
    rig.put(&format!("{slot}/hostapps/old/boot/board.dtb"), "a tree");
    rig.ok(&["sh", "-c", "ln -s hostapps/old /mnt/sysroot/inactive/current"]);
    rig.ok(&["fallocate", "-l", "140M", "/mnt/sysroot/inactive/hostapps/old/boot/kernel"]);
    let layer = tar_of(&[("boot/init", 0o755, b"#!/bin/sh"), ("usr/share/large", 0o644, &vec![7; 60 << 20])]);
    fs::write(rig.at("mnt/data/large.tar"), Made::new(vec![layer]).archive(&["a:1"])).unwrap();
    let update = || rig.run(&["copal", "update", "-f", "/mnt/data/large.tar"]);
    rig.put("etc/copal/update.conf", "ALWAYS_READ_SLOT=B\n");
    let out = update();
    assert_refused(&rig, &out, "slot-full");
    assert_eq!(rig.text(&format!("{slot}/current/boot/board.dtb")), "a tree");
    // In doubt, too.
    rig.put("etc/copal/update.conf", "ALWAYS_READ_SLOT=b\n");
    let out = update();
    assert_refused(&rig, &out, "slot-full");
    assert!(stderr(&out).contains("`b` is none of A or B"), "{}", stderr(&out));
    // The bootloader does not read this slot: there is space.
    rig.put("etc/copal/update.conf", "ALWAYS_READ_SLOT=A\n");
    let out = update();
    assert!(!stderr(&out).contains("[slot-full]") && out.status.code() == Some(4), "{}", stderr(&out));
}

#[test]
fn an_engine_that_is_not_there_is_reported() {
    needs!(can_run);
    let rig = Rig::new();
    let out = rig.run(&["copal", "update", "-i", "registry/os:2"]);
    assert_eq!(out.status.code(), Some(3), "{}", stderr(&out));
    assert!(stderr(&out).contains("[engine-unreachable]"), "{}", stderr(&out));
}

#[test]
fn an_image_that_the_registry_does_not_give_is_refused_with_the_slot_intact() {
    needs!(can_run);
    let rig = rig();
    let (mut registry, name) = rig.registry();
    // What was installed before is in the engine.
    rig.ok(&["docker", "-H", "unix:///var/run/balena-host.sock", "load", "-i", "/mnt/data/os.tar"]);
    let images = || stdout(&rig.docker(&["images", "--quiet"]));
    let before = images();
    assert!(!before.is_empty());
    let update = |image: &str| rig.run(&["copal", "update", "-i", image]);
    assert_refused(&rig, &update(&format!("{name}:none")), "image-unknown");
    assert_refused(&rig, &update(&format!("{name}@sha256:{}", "0a".repeat(32))), "image-unknown");
    let out = rig.run(&["hostapp-update", "-i", &format!("{name}:none")]);
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    assert!(stderr(&out).contains("[image-unknown]") && rig.has("mnt/sysroot/inactive/hostapps/old"));
    rig.ok(&["sh", "-c", "kill $(busybox pidof docker-registry)"]);
    drop(registry.wait());
    assert_refused(&rig, &update(&name), "registry-unreachable");
    assert_eq!(images(), before);
}

#[test]
fn the_legacy_name_knows_two_exit_codes_for_failures() {
    needs!(can_run);
    let rig = Rig::new();
    for (args, code) in [(&[][..], 2), (&["-z"], 2), (&["-r"], 2), (&["-f", "/none"], 1), (&["-i", "a:b"], 1)]
    {
        let out = rig.run(&[&["hostapp-update"], args].concat());
        assert_eq!(out.status.code(), Some(code), "{args:?}: {}", stderr(&out));
        let said = stderr(&out);
        assert!(said.lines().count() == 1 && said.starts_with("[hostapp-update][ERROR] "), "{said}");
        assert!(!stdout(&out).contains("[ERROR]"), "{}", stdout(&out));
    }
}
