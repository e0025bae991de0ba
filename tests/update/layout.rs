//! What a successful update leaves behind.

use serde_json::Value;

use crate::image::Release;
use crate::kit::needs::needs;
use crate::rig::{Rig, can_run, stderr, stdout};

/// The slot is as a board's bootloader and mobynit expect it.
pub fn assert_slot(rig: &Rig, counter: &str) {
    let slot = "mnt/sysroot/inactive";
    let containers = stdout(&rig.docker(&["ps", "--all", "--quiet", "--no-trunc"]));
    let id = containers.trim();
    assert!(!id.is_empty() && !id.contains('\n'), "one container: {containers}");
    assert_eq!(rig.names(&format!("{slot}/hostapps")), [id]);
    assert_eq!(rig.link(&format!("{slot}/current")), format!("hostapps/{id}"));
    assert_eq!(rig.link(&format!("{slot}/boot")), "current/boot");
    assert_eq!(rig.link(&format!("{slot}/sbin/init")), "../current/boot/init");
    let boot = rig.link(&format!("{slot}/hostapps/{id}/boot"));
    let volume = boot.strip_prefix("../../balena/volumes/").unwrap().strip_suffix("/_data").unwrap();
    assert!(!volume.contains('/') && !volume.is_empty(), "{boot}");
    // Through all of them, as the bootloader goes.
    assert!(rig.text(&format!("{slot}/sbin/init")).contains("-sysroot"));
    assert_eq!(rig.text(&format!("{slot}/counter")), counter);
    assert_eq!(rig.text(&format!("{slot}/etc/machine-id")), "");
    for folder in ["dev", "balena", "mnt/state", "proc", "run", "sys", "tmp", "lost+found"] {
        assert!(rig.at(&format!("{slot}/{folder}")).is_dir(), "{folder}");
    }
    let inspect: Value = serde_json::from_str(&stdout(&rig.docker(&["inspect", id]))).unwrap();
    assert_eq!(inspect[0]["HostConfig"]["Runtime"], "bare");
    assert_eq!(inspect[0]["State"]["Status"], "created", "it is never started");
    assert_eq!(stdout(&rig.docker(&["images", "--quiet"])).lines().count(), 1, "one image");
    assert_eq!(stdout(&rig.docker(&["volume", "ls", "--quiet"])).lines().count(), 1, "one volume");
}

/// What the engine's client shows as the image of each container.
fn images_of_containers(rig: &Rig) -> String {
    stdout(&rig.docker(&["ps", "--all", "--format", "{{.Image}}"]))
}

fn assert_selected(rig: &Rig) {
    assert_eq!(rig.selected(), ("3".into(), "1".into()));
    for name in ["health", "altboot"] {
        assert!(rig.has(&format!("mnt/state/rollback-{name}-breadcrumb")), "{name}");
    }
    let marker: Value = serde_json::from_str(&rig.text("run/copal/marker")).unwrap();
    assert_eq!((&marker["kind"], &marker["target"]), (&"installing".into(), &"B".into()));
    assert_eq!(rig.text("mnt/boot/kernel"), "new\n");
    rig.ok(&["sh", "-c", "cd /mnt/boot && md5sum --quiet -c balenaos.fingerprint"]);
}

#[test]
fn an_archive_is_installed_and_selected() {
    needs!(can_run);
    let rig = Rig::ready();
    rig.put("run/openvpn/vpn_status/active", "");
    rig.put("mnt/sysroot/inactive/hostapps/old/boot/x", "");
    rig.put("mnt/state/copal/units", "of an earlier update");
    let out = rig.update(&[]);
    let log = stdout(&out);
    assert_eq!(out.status.code(), Some(0), "{log}{}", stderr(&out));
    assert_slot(&rig, "5\n");
    assert_eq!(images_of_containers(&rig), "registry/os:2\n", "as it was loaded");
    assert_selected(&rig);
    assert_eq!(rig.said(), "before 1\nforward 1\nafter 1\n");
    assert_eq!(rig.text("mnt/state/rollback-health-variables"), "BALENAOS_ROLLBACK_VPNONLINE=1\n");
    assert!(!rig.has("mnt/state/copal/units"), "without systemd there is no list, least of all an old one");
    assert!(!rig.has("mnt/state/copal/bootfiles"));
    assert!(!rig.has("mnt/data/resin-data/tmp"));
    assert!(rig.has("mnt/data/os.tar"));
    rig.assert_tidy(&log);
    // Callers keep its standard output as the record of the update.
    assert!(!stderr(&out).contains("[INFO]"), "{}", stderr(&out));
    assert!(log.lines().all(|l| l.starts_with("[hostapp-update][INFO] ")), "{log}");
    assert!(
        log.contains("[hostapp-update][INFO] /mnt/data/os.tar is installed; slot B boots next, on trial"),
        "{log}"
    );

    // Another one over it, before it was ever booted: the running system first gets its boot files back.
    let again = rig.run(&["copal", "update", "--file", "/mnt/data/os.tar", "--json"]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr(&again));
    assert_slot(&rig, "5\n");
    assert_selected(&rig);
    assert_eq!(rig.said(), "before 1\nforward 1\nafter 1\ncurrent 0\nbefore 1\nforward 1\nafter 1\n");
    assert_eq!(rig.text("mnt/state/rollback-health-variables"), "BALENAOS_ROLLBACK_VPNONLINE=1\n");
    let text = stdout(&again);
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let last = lines.last().unwrap();
    assert_eq!((&last["event"], &last["ok"]), (&"result".into(), &true.into()), "{text}");
    assert_eq!(last["update"]["slot"], "B");
    assert_eq!(last["update"]["selected"], true);
    assert_eq!(last["update"]["counter"], 5);
    assert!(lines.iter().any(|l| l["stage"] == "unpack" || l["stage"] == "load"), "{text}");
}

#[test]
fn an_image_of_a_registry_stays_in_the_engine() {
    needs!(can_run);
    let rig = Rig::ready();
    let (mut registry, name) = rig.registry();
    // Without a tag, as it is written in many a script.
    let out = rig.run(&["hostapp-update", "-i", &name]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "5\n");
    assert_eq!(images_of_containers(&rig), format!("{name}\n"), "as it was asked for");
    assert_selected(&rig);
    // What the fleet's updater does next.
    let out =
        rig.docker(&["run", "--rm", "--network=none", &name, "cat", "/etc/hostapp-update-hooks.d/a-hook"]);
    assert!(out.status.success(), "{}", stderr(&out));
    drop(registry.kill());
    drop(registry.wait());
}

#[test]
fn without_hooks_nothing_is_selected() {
    needs!(can_run);
    let rig = Rig::ready();
    let out = rig.update(&["-n"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "5\n");
    assert_eq!(rig.said(), "");
    rig.assert_back("-n");
    assert!(stdout(&out).contains("slot B was not selected"), "{}", stdout(&out));
}

#[test]
fn an_image_is_built_where_there_is_no_device() {
    needs!(can_run);
    let rig = Rig::ready();
    // Nothing of a device: no running slot, no state, no boot partition.
    let script = "umount /mnt/sysroot/active /mnt/state /mnt/boot && rmdir /mnt/sysroot/active /mnt/state /mnt/boot \
        && mv /mnt/data/os.tar /input && umount -l /mnt/data && rmdir /mnt/data";
    rig.ok(&["sh", "-c", script]);
    let out = rig.run(&["hostapp-update", "-f", "/input", "-n"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_slot(&rig, "1\n");
    for path in ["mnt/state", "mnt/boot", "mnt/data"] {
        assert!(!rig.has(path), "{path}");
    }
}

#[test]
fn a_release_without_hooks_for_the_old_system_is_installed_too() {
    needs!(can_run);
    let rig = Rig::ready();
    let old = Release::new();
    old.remove("usr/bin/hostapp-update-hooks-v2");
    old.archive("registry/os:1", &rig.at("mnt/data/os.tar"));
    let out = rig.update(&[]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_selected(&rig);
    assert_eq!(rig.said(), "forward 1\n");
}
