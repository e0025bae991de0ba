//! What the old hooks find.

use std::collections::BTreeSet;
use std::path::Path;

use copal::sys::mount::parse_mounts;

use super::rig::{Rig, stderr, wait};
use crate::kit::added::is_added;
use crate::kit::needs::{can_run, needs};

/// Of a machine without firmware and security modules.
const POINTS: [&str; 13] = [
    "/",
    "/dev",
    "/mnt/boot",
    "/mnt/data",
    "/mnt/state",
    "/mnt/sysroot",
    "/mnt/sysroot/active",
    "/mnt/sysroot/inactive",
    "/proc",
    "/run",
    "/sys",
    "/tmp",
    "/var/cache",
];

/// `/sys` as another machine has it, without the firmware of this one.
const OTHER_SYS: &str = "mount -t tmpfs tmpfs /sys && mkdir -p /sys/firmware";

fn points(rig: &Rig) -> BTreeSet<String> {
    let mounts = parse_mounts(rig.text("mnt/state/seen-mounts").as_bytes());
    let points: Vec<String> = mounts.iter().map(|m| m.point.to_str().unwrap().to_owned()).collect();
    let set: BTreeSet<String> = points.iter().cloned().collect();
    assert_eq!(set.len(), points.len(), "nothing is mounted twice: {points:?}");
    set
}

fn wanted(more: &[&str]) -> BTreeSet<String> {
    POINTS.iter().chain(more).map(|p| (*p).to_owned()).collect()
}

#[test]
fn they_run_in_their_own_root_with_this_systems_places() {
    needs!(can_run);
    let mut rig = Rig::new();
    rig.ok(&["sh", "-c", OTHER_SYS]);
    rig.remember();
    for place in ["mnt/boot", "mnt/data", "mnt/sysroot/active", "mnt/sysroot/inactive", "run"] {
        rig.put(&format!("{place}/of-this"), place);
    }
    rig.hook(
        "for f in mnt/boot mnt/data mnt/sysroot/active mnt/sysroot/inactive run; do cat /$f/of-this; echo; done > /mnt/state/seen\n\
         echo written > /mnt/boot/by-the-hooks\n\
         test -b /dev/loop0 && test -d /proc/1 && test -d /sys/firmware || exit 7\n",
    );
    let log = rig.succeeds();
    rig.assert_tidy(&log);
    rig.assert_unused(&log);
    assert_eq!(points(&rig), wanted(&[]));
    let table = rig.text("mnt/state/seen-mounts");
    assert!(!table.contains("shared:") && !table.contains("master:"), "nothing gets out: {table}");
    assert_eq!(rig.text("mnt/state/seen-folder"), "/\n");
    assert_eq!(rig.text("mnt/state/seen-input"), "");
    assert_eq!(
        rig.text("mnt/state/seen"),
        "mnt/boot\nmnt/data\nmnt/sysroot/active\nmnt/sysroot/inactive\nrun\n"
    );
    assert_eq!(rig.text("mnt/boot/by-the-hooks"), "written\n");
    assert_eq!(rig.text("mnt/state/seen-writable"), "/tmp\n/var/cache\n");
    for layer in ["", "../diff/"] {
        for folder in ["tmp", "var/cache"] {
            assert!(!rig.old(&format!("{layer}{folder}/probe")).exists(), "the old root is not written to");
        }
    }
    for line in [
        "[rollback-health][INFO] running the hooks of the old system\n",
        "[rollback-health][INFO] old system: begins\n",
        "[rollback-health][WARN] old system: has run\n",
    ] {
        assert!(log.contains(line), "{log}");
    }
}

#[test]
fn they_learn_of_an_update_and_get_nothing_of_copals() {
    needs!(can_run);
    let rig = Rig::new();
    let mut program = rig.program();
    program.envs([("COPAL_HOOK_TIMEOUT", "1"), ("COPAL_BOOTFILES_ROOT", "/"), ("CRYPT", "1")]);
    program.envs([("DURING_UPDATE", "0"), ("OF_THE_SERVICE", "kept")]);
    let log = stderr(&wait(program.spawn().unwrap()));
    assert!(log.contains("RESULT ok"), "{log}");
    let env = rig.text("mnt/state/seen-env");
    let names: Vec<&str> = env.lines().map(|l| l.split('=').next().unwrap()).collect();
    // The script that runs them exports nothing else, least of all the engine's address, and neither does this.
    let names: Vec<&str> = names.into_iter().filter(|n| !is_added(n)).collect();
    assert_eq!(names, ["DURING_UPDATE", "OF_THE_SERVICE", "PATH"], "{env}");
    for line in ["DURING_UPDATE=1", "OF_THE_SERVICE=kept", "PATH=/usr/bin:/usr/sbin"] {
        assert!(env.lines().any(|l| l == line), "{line}: {env}");
    }
}

#[test]
fn firmware_variables_and_security_are_there_where_this_system_has_them() {
    needs!(can_run);
    let mut rig = Rig::new();
    let script = format!(
        "{OTHER_SYS} && mkdir -p /sys/firmware/efi/efivars /sys/kernel/security && mount -t tmpfs vars /sys/firmware/efi/efivars"
    );
    rig.ok(&["sh", "-c", &script]);
    rig.remember();
    let log = rig.succeeds();
    rig.assert_tidy(&log);
    assert_eq!(points(&rig), wanted(&["/sys/firmware/efi/efivars", "/sys/kernel/security"]));

    // Not to be had: the hooks that need none of it run all the same.
    rig.ok(&["umount", "/sys/firmware/efi/efivars"]);
    rig.remember();
    let log = rig.succeeds();
    rig.assert_tidy(&log);
    if !Path::new("/sys/firmware/efi").exists() {
        assert!(log.contains("without /sys/firmware/efi/efivars"), "{log}");
        assert_eq!(points(&rig), wanted(&["/sys/kernel/security"]));
    }
}

#[test]
fn a_boot_partition_that_is_not_encrypted_is_there_too() {
    needs!(can_run);
    let mut rig = Rig::made(|top| std::fs::create_dir(top.join("root/mnt/efi")).unwrap());
    rig.ok(&[
        "sh",
        "-c",
        &format!("{OTHER_SYS} && mount -t tmpfs efi /mnt/efi && echo efi > /mnt/efi/of-this"),
    ]);
    rig.remember();
    rig.hook("cat /mnt/efi/of-this > /mnt/state/seen");
    let log = rig.succeeds();
    rig.assert_tidy(&log);
    assert_eq!(points(&rig), wanted(&["/mnt/efi"]));
    assert_eq!(rig.text("mnt/state/seen"), "efi\n");
    assert!(rig.old("../diff/mnt/efi").is_dir(), "the old root has none: it was made");

    // In a root that nobody can write to, it has to be there already.
    rig.put("mnt/sysroot/inactive/read-only", "");
    let log = rig.succeeds();
    rig.assert_tidy(&log);
    assert_eq!(rig.text("mnt/state/seen-writable"), "/tmp\n/var/cache\n".repeat(2));
    std::fs::remove_dir(rig.old("../diff/mnt/efi")).unwrap();
    std::fs::remove_file(rig.at("mnt/state/seen-env")).unwrap();
    let log = rig.fails();
    rig.assert_tidy(&log);
    assert!(log.contains("cannot mount /mnt/efi in the old system: Read-only file system"), "{log}");
    assert!(!rig.has("mnt/state/seen-env"), "nothing was run");
}
