//! The rollback units under a real systemd: a device with two root partitions, and a bootloader that takes what is selected.

use std::path::{Path, PathBuf};

use crate::support::{Disk, Guest, LIMIT, Shutdown, System, fat_image, folder, gpt_image, tool};

/// Mounts what balenaOS has mounted, by the links that the rule of the update state makes.
const MOUNT: &str = r#"#!/bin/sh
set -eu
for i in $(seq 1200); do [ ! -e "/dev/disk/by-state/$1" ] || break; sleep 0.1; done
mkdir -p "$2"
mount "/dev/disk/by-state/$1" "$2"
"#;

/// A unit that mounts, under a name that the units of copal wait for.
fn mounting(what: &str, point: &str) -> String {
    format!(
        "[Unit]\nDefaultDependencies=no\nAfter=systemd-udevd.service\nBefore=local-fs.target\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/local/sbin/mount-state {what} {point}\n"
    )
}

const INACTIVE: &str =
    "[Mount]\nWhat=/dev/disk/by-state/inactive\nWhere=/mnt/sysroot/inactive\nType=ext4\nOptions=noauto\n";

/// What mobynit does with `-sysroot`.
const INIT: &str = r#"#!/bin/sh
set -eu
[ "$1" = -sysroot ]
at=$(mktemp -d)
mount --bind "$2" "$at"
echo "$at"
"#;

/// The runner of a release before copal. The boot partition has to be the device's.
const OLD_HOOKS: &str = r#"#!/bin/sh
set -eu
. /etc/os-release
echo "$VERSION during=$DURING_UPDATE root=$(cat /slot)" >/mnt/boot/old-hooks.txt
[ -e /dev/disk/by-state/inactive ] && [ -e /proc/1/status ] && [ -d /mnt/sysroot/active/hostapps ]
"#;

/// The release in slot B has a fault.
const CHECK: &str = r#"#!/bin/sh
[ "$(cat /slot)" = A ] || { echo the engine is unwell >&2; exit 9; }
"#;

/// The release in one of the roots.
pub(crate) fn release(test: &str, slot: &str, version: &str) -> Option<System> {
    let hostapp = "c0ffee";
    let os_release = format!("VERSION=\"{version}\"\n");
    let shim = std::fs::read_to_string("hooks/rollback-health").unwrap();
    let shim = shim.replace("TIMEOUT=60", "TIMEOUT=1").replace("COUNT=15", "COUNT=2");
    let mut system = System::new(test)?
        .copal()
        .text("/usr/bin/rollback-health", &shim)
        .link("copal", "/usr/bin/rollback-altboot")
        .link("copal", "/usr/bin/rollback-clear-bootcount")
        .link("/usr/bin/copal", "/usr/lib/udev/resin_update_state_probe")
        .shipped("systemd/65-resin-update-state.rules", "/usr/lib/udev/rules.d/65-resin-update-state.rules")
        .text("/usr/local/sbin/mount-state", MOUNT)
        .unit("resin-boot.service", &mounting("resin-boot", "/mnt/boot"))
        .unit("resin-state.service", &mounting("resin-state", "/mnt/state"))
        .unit("mnt-sysroot-active.service", &mounting("active", "/mnt/sysroot/active"))
        // As in balenaOS: mounted when somebody looks into it.
        .text("/etc/systemd/system/mnt-sysroot-inactive.mount", INACTIVE)
        .unit("mnt-sysroot-inactive.automount", "[Automount]\nWhere=/mnt/sysroot/inactive\n")
        .unit("balena.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n")
        .text("/usr/lib/balena/balena-healthcheck", CHECK)
        .text("/usr/bin/rollback-board-healthcheck", "#!/bin/sh\n")
        .text("/usr/bin/hostapp-update-hooks", OLD_HOOKS)
        .text("/etc/os-release", &os_release)
        .text("/slot", slot)
        .text("/mnt/data/keep", "")
        .text("/mnt/sysroot/active/keep", "")
        .text("/mnt/sysroot/inactive/keep", "")
        .text("/mnt/state/keep", "")
        .text("/mnt/boot/keep", "")
        .text("/resin-boot/release.txt", version)
        // The hostapp, as far as it is looked at.
        .link(&format!("hostapps/{hostapp}"), "/current")
        .link("../../balena/volumes/v/_data", &format!("/hostapps/{hostapp}/boot"))
        .text("/balena/volumes/v/_data/init", INIT)
        .text(&format!("/balena/image/overlay2/layerdb/mounts/{hostapp}/mount-id"), "top")
        .text("/balena/overlay2/top/diff/etc/os-release", &os_release);
    for unit in ["copal-boot-check", "rollback-health", "rollback-altboot", "rollback-clear-bootcount"] {
        system = system.shipped_unit(&format!("{unit}.service"));
    }
    Some(system.jobs())
}

impl System {
    /// The D-Bus service, and the units that it and its clients start.
    pub(crate) fn jobs(mut self) -> Self {
        for unit in ["copal.service", "copal-job@.service", "copal-reboot.service"] {
            self = self.shipped(&format!("systemd/{unit}"), &format!("/lib/systemd/system/{unit}"));
        }
        self.shipped(
            "systemd/io.balena.Copal1.service",
            "/usr/share/dbus-1/system-services/io.balena.Copal1.service",
        )
        .shipped("systemd/io.balena.Copal1.conf", "/usr/share/dbus-1/system.d/io.balena.Copal1.conf")
    }
}

/// Makes the file `disk` of the slot A in the file `a`, an empty slot B, and a boot partition that selects A.
pub(crate) fn internal_disk(dir: &Path) {
    let at = |name: &str| dir.join(name);
    let (boot, a, b, state) = (at("boot"), at("a"), at("b"), at("state"));
    for (file, label) in [(&b, "resin-rootB"), (&state, "resin-state")] {
        tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-L", label, file.to_str().unwrap(), "16M"]);
    }
    fat_image(&boot, "resin-boot", 16, &[("resinOS_uEnv.txt", b"resin_root_part=2\nupgrade_available=0\n")]);
    let parts: [(&str, &Path); 4] =
        [("resin-boot", &boot), ("resin-rootA", &a), ("resin-rootB", &b), ("resin-state", &state)];
    gpt_image(&at("disk"), &parts, 1);
}

/// A device on which this is selected.
fn device(test: &str, dir: &Path, selected: &str) -> Option<PathBuf> {
    let at = |name: &str| dir.join(name);
    let (boot, state, disk) = (at("boot"), at("state"), at("disk"));
    release(test, "A", "5.1.0")?.ext4(&at("a"), "resin-rootA", 400);
    release(test, "B", "6.0.0")?.ext4(&at("b"), "resin-rootB", 400);
    fat_image(
        &boot,
        "resin-boot",
        16,
        &[
            ("resinOS_uEnv.txt", selected.as_bytes()),
            ("bootcount.env", b"bootcount=1\n\0"),
            ("release.txt", b"6.0.0"),
        ],
    );
    tool(&["mke2fs", "-q", "-F", "-t", "ext4", "-L", "resin-state", state.to_str().unwrap(), "16M"]);
    let (a, b) = (at("a"), at("b"));
    let parts: [(&str, &Path); 4] =
        [("resin-boot", &boot), ("resin-rootA", &a), ("resin-rootB", &b), ("resin-state", &state)];
    gpt_image(&disk, &parts, 1);
    for part in [a, b] {
        std::fs::remove_file(part).unwrap();
    }
    Some(disk)
}

/// A file of the boot partition, empty where it is not there.
pub(crate) fn boot_file(disk: &Path, name: &str) -> String {
    let image = format!("{}@@1M", disk.display());
    let list = tool(&["mdir", "-b", "-i", &image, "::/"]);
    if !list.lines().any(|l| l.trim() == format!("::/{name}")) {
        return String::new();
    }
    tool(&["mtype", "-i", &image, &format!("::/{name}")])
}

/// Boots what is selected, as U-Boot does.
fn start(test: &str, disk: &Path) -> Option<Guest> {
    let selected = boot_file(disk, "resinOS_uEnv.txt");
    let slot = if selected.lines().any(|l| l == "resin_root_part=2") { "A" } else { "B" };
    let guest = Guest::system(test, &format!("LABEL=resin-root{slot}"))?;
    Some(guest.other_module("kernel/fs/autofs/autofs4.ko").disk(Disk::Virtio, disk, "INTERNAL"))
}

/// Everything in the first boot is done by the units. Nobody has looked at the inactive slot by then: it is not mounted yet.
const FAILS: &str = "sleep 850";

/// What is known after the way back; a trial that passes; and one that a wanted reboot comes into.
const STAYS: &str = r#"
show() { systemctl show --value -p "$1" "$2"; }
wait_for() { for i in $(seq 1200); do [ "$(show Job $1)" ] || break; sleep 0.1; done; }
wait_for copal-boot-check.service
copal status >/host/back
copal status --log >/host/log
systemctl --failed --no-legend >/host/failed

touch /mnt/state/rollback-health-breadcrumb /mnt/state/rollback-altboot-breadcrumb
printf 'bootcount=1\n\0' >/mnt/boot/bootcount.env
printf 'resin_root_part=2\nupgrade_available=1\n' >/mnt/boot/resinOS_uEnv.txt
systemctl start rollback-health.service
for unit in copal-boot-check rollback-altboot rollback-health; do
    echo "$unit $(show ActiveState $unit) $(show Result $unit)" >>/host/units
done
cat /mnt/boot/resinOS_uEnv.txt >/host/committed
ls /mnt/boot /mnt/state >>/host/committed
copal status >>/host/committed

touch /mnt/state/rollback-health-breadcrumb
printf 'bootcount=2\n\0' >/mnt/boot/bootcount.env
printf 'resin_root_part=2\nupgrade_available=1\n' >/mnt/boot/resinOS_uEnv.txt
copal status >/host/on-trial
"#;

/// The messages of a program in the journal.
pub(crate) fn said(journal: &[serde_json::Value], by: &str) -> String {
    let of_it = journal.iter().filter(|e| e["SYSLOG_IDENTIFIER"] == by);
    of_it.map(|e| format!("{}\n", e["MESSAGE"].as_str().unwrap_or_default())).collect()
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_system_on_trial_goes_or_stays() {
    let test = "a_system_on_trial_goes_or_stays";
    if Guest::system(test, "").is_none() {
        return;
    }
    let dir = folder();
    // Slot B is on trial, and was tried once.
    let Some(disk) = device(test, dir.path(), "resin_root_part=3\nupgrade_available=1\n") else { return };

    let Some(guest) = start(test, &disk) else { return };
    let outcome = guest.script(FAILS).run(LIMIT);
    println!("to the reboot: {:?}", outcome.took);
    let journal = outcome.journal();
    let health = said(&journal, "rollback-health");
    assert_eq!(outcome.ending, Shutdown::Rebooted, "{health}\n{}", outcome.console);
    has(&said(&journal, "rollback-altboot"), &["nothing to do"]);
    has(&said(&journal, "copal"), &["trial: "]);
    has(
        &health,
        &[
            "to 0 (1 of 3)",
            "attempt 2 of 2",
            "rolling back from slot B",
            "copal-reboot.service reboots the device",
        ],
    );
    has(&said(&journal, "copal"), &["systemd was asked to reboot"]);
    assert!(!said(&journal, "systemd").contains("ordering cycle"), "{}", said(&journal, "systemd"));
    assert_eq!(boot_file(&disk, "resinOS_uEnv.txt"), "resin_root_part=2\nupgrade_available=0\n");
    assert_eq!(boot_file(&disk, "bootcount.env"), "");
    assert_eq!(boot_file(&disk, "old-hooks.txt"), "5.1.0 during=1 root=A\n");

    let Some(guest) = start(test, &disk) else { return };
    let outcome = guest.script(STAYS).run(LIMIT).ok();
    println!("the way back, and a trial: {:?}", outcome.took);
    has(
        &outcome.file("back"),
        &[
            "phase    healthy",
            "slot A   5.1.0, on vda2 (partition 2), runs now, boots next",
            "slot B   6.0.0",
            "from 6.0.0 in slot B to 5.1.0 in slot A: the health checks failed 2 times",
            "check engine failed 2 of 2 times: it ended with status 9, after it said: the engine is unwell",
            "flag     rollback-health-triggered",
        ],
    );
    has(&outcome.file("log"), &["rolling back from slot B"]);
    assert_eq!(outcome.file("failed"), "");
    let units = outcome.file("units");
    for unit in ["copal-boot-check", "rollback-altboot", "rollback-health"] {
        assert!(units.lines().any(|l| l == format!("{unit} inactive success")), "{units}");
    }
    let committed = outcome.file("committed");
    has(
        &committed,
        &["resin_root_part=2\nupgrade_available=0\n", "phase    healthy", "5.1.0 in slot A was committed"],
    );
    for gone in ["breadcrumb", "bootcount.env"] {
        assert!(!committed.contains(gone), "{gone}: {committed}");
    }
    // It went down in good order, the boot partition still being there.
    has(&outcome.file("on-trial"), &["phase    trial", "2 of 3 boot attempts counted"]);
    has(&said(&outcome.journal(), "rollback-clear-bootcount"), &["boot count reset from 2 to 0"]);
    assert_eq!(boot_file(&disk, "bootcount.env"), "");
    assert_eq!(boot_file(&disk, "resinOS_uEnv.txt"), "resin_root_part=2\nupgrade_available=1\n");
}

/// A commit is taken back by a job, and a unit does not let the system shut down.
const HANGS: &str = r#"
show() { systemctl show --value -p "$1" "$2"; }
for i in $(seq 1200); do [ "$(show Job copal-boot-check.service)" ] || break; sleep 0.1; done
touch /mnt/state/rollback-health-breadcrumb
printf 'bootcount=1\n\0' >/mnt/boot/bootcount.env
printf 'resin_root_part=2\nupgrade_available=1\n' >/mnt/boot/resinOS_uEnv.txt
call() { busctl -j --system --timeout=120 call io.balena.Copal1 /io/balena/Copal1 io.balena.Copal1.Manager "$@"; }
# The service is the first to look into the inactive slot.
call Status >/host/by-service
copal status --json >/host/by-verb
call Rollback
for i in $(seq 1200); do [ -z "$(show ActiveState copal-job@1.service | grep -v inactive)" ] || break; sleep 0.1; done
sleep 850
"#;

const STUCK: &str =
    "[Service]\nExecStart=/bin/sleep infinity\nExecStop=/bin/sleep infinity\nTimeoutStopSec=infinity\n";

#[test]
fn a_job_reboots_a_system_whose_shutdown_hangs() {
    let test = "a_job_reboots_a_system_whose_shutdown_hangs";
    if Guest::system(test, "").is_none() {
        return;
    }
    let dir = folder();
    let Some(disk) = device(test, dir.path(), "resin_root_part=2\nupgrade_available=0\n") else { return };
    let Some(guest) = start(test, &disk) else { return };
    let outcome = guest.script(&HANGS.replace("call Rollback", &format!(
        "printf '{}' >/run/systemd/system/stuck.service\nsystemctl daemon-reload\nsystemctl start stuck.service\ncall Rollback",
        STUCK.replace('\n', "\\n")
    ))).run(LIMIT);
    println!("to the reboot: {:?}", outcome.took);
    let journal = outcome.journal();
    let copal = said(&journal, "copal");
    assert_eq!(outcome.ending, Shutdown::Rebooted, "{copal}\n{}", outcome.console);
    // The shutdown that hangs is the one that the job began, and has stopped it.
    let job_said = |e: &&serde_json::Value| e["_SYSTEMD_UNIT"] == "copal-job@1.service";
    let by_job: String = journal
        .iter()
        .filter(job_said)
        .filter_map(|e| e["MESSAGE"].as_str())
        .map(|m| format!("{m}\n"))
        .collect();
    has(&by_job, &["rolling back from slot A", "copal-reboot.service reboots the device"]);
    // The unit never ends, so the reboot was copal's own. What it says last may not reach the journal before it.
    has(&copal, &["systemd was asked to reboot"]);
    assert_eq!(boot_file(&disk, "resinOS_uEnv.txt"), "resin_root_part=3\nupgrade_available=0\n");
    // What the service sees from its sandbox is what root sees.
    let service: serde_json::Value = serde_json::from_str(&outcome.file("by-service")).unwrap();
    let service: serde_json::Value = serde_json::from_str(service["data"][0].as_str().unwrap()).unwrap();
    let verb: serde_json::Value = serde_json::from_str(outcome.file("by-verb").trim()).unwrap();
    assert_eq!(service["slots"].as_array().map(Vec::len), Some(2), "{service}");
    for key in ["phase", "slots", "boot", "problems", "breadcrumb"] {
        assert_eq!(service[key], verb["status"][key], "{key}: {}", service["problems"]);
    }
}
