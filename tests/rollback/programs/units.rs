//! The units: what boards and other units rely on, word for word, and what systemd itself says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kit::mount_namespace::makes_one;
use crate::kit::needs::{not_run, test_name};

const OURS: [&str; 5] = [
    "copal-boot-check",
    "copal-commit-hooks",
    "rollback-health",
    "rollback-altboot",
    "rollback-clear-bootcount",
];

/// The rest of the units. What others rely on in them is in other tests.
const OF_OTHER_TESTS: [&str; 4] = ["resin-init-flasher", "copal", "copal-job@", "copal-reboot"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd")
}

/// Every word that a unit gives a key, by `Section.Key`.
fn unit(name: &str) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(folder().join(format!("{name}.service"))).unwrap();
    let mut words: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut section = String::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            name.clone_into(&mut section);
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{name}: {line}"));
        let values = words.entry(format!("{section}.{key}")).or_default();
        values.extend(value.split_whitespace().map(str::to_owned));
    }
    words
}

/// That a key has these words; nothing else either where `exactly`.
#[track_caller]
fn has(name: &str, key: &str, exactly: bool, words: &str) {
    let unit = unit(name);
    let found = unit.get(key).cloned().unwrap_or_default();
    for word in words.split(' ') {
        assert!(found.iter().any(|f| f == word), "{name}: {key}={word} in {found:?}");
    }
    assert!(!exactly || found.len() == words.split(' ').count(), "{name}: {key}={found:?}");
}

#[test]
fn health_and_altboot_are_those_that_others_refer_to() {
    let health = "rollback-health";
    has(health, "Unit.DefaultDependencies", true, "no");
    has(health, "Unit.Requires", true, "resin-boot.service mnt-sysroot-active.service");
    has(health, "Unit.Wants", false, "openvpn.service balena.service");
    has(
        health,
        "Unit.After",
        false,
        "resin-boot.service mnt-sysroot-active.service openvpn.service balena.service systemd-udev-settle.service",
    );
    has(health, "Unit.ConditionPathExists", true, "/mnt/state/rollback-health-breadcrumb");
    has(health, "Service.ExecStart", true, "/usr/bin/rollback-health");
    let altboot = "rollback-altboot";
    has(altboot, "Unit.DefaultDependencies", true, "no");
    has(altboot, "Unit.Requires", true, "resin-boot.service");
    has(altboot, "Unit.Before", false, "balena-host.service balena.service");
    has(altboot, "Unit.After", false, "resin-boot.service systemd-udev-settle.service");
    has(altboot, "Unit.ConditionPathExists", true, "/mnt/state/rollback-altboot-breadcrumb");
    has(altboot, "Service.ExecStart", true, "/usr/bin/rollback-altboot");
    for name in [health, altboot] {
        has(name, "Service.Type", true, "oneshot");
        has(name, "Install.WantedBy", true, "multi-user.target");
        has(name, "Service.TimeoutStartSec", true, "infinity");
        has(name, "Service.NotifyAccess", true, "main");
        // They look at breadcrumbs that the check at boot creates, and end with the system, which fails every test then.
        has(name, "Unit.After", false, "copal-boot-check.service resin-state.service");
        has(name, "Unit.After", false, "mnt-sysroot-inactive.automount");
        has(name, "Unit.Conflicts", true, "shutdown.target");
        has(name, "Unit.Before", false, "shutdown.target");
        // Inactive when nothing is left to do: test suites wait for that.
        assert!(!unit(name).contains_key("Service.RemainAfterExit"), "{name}");
    }
}

#[test]
fn the_count_is_cleared_before_its_partitions_go() {
    let name = "rollback-clear-bootcount";
    has(name, "Unit.DefaultDependencies", true, "no");
    has(name, "Unit.Conflicts", true, "umount.target");
    has(name, "Unit.Before", false, "umount.target");
    has(name, "Service.Type", true, "oneshot");
    has(name, "Service.RemainAfterExit", true, "yes");
    has(name, "Service.ExecStart", true, "/bin/true");
    has(name, "Service.ExecStop", true, "/usr/bin/rollback-clear-bootcount");
    has(name, "Install.WantedBy", true, "multi-user.target");
    has(name, "Unit.After", false, "resin-boot.service balena-nonencboot.service resin-state.service");
    has(
        name,
        "Unit.After",
        false,
        "mnt-boot.mount mnt-efi.mount mnt-rpi.mount mnt-imx.mount mnt-state.mount",
    );
    // Stopped after those who write the boot state.
    has(
        name,
        "Unit.Before",
        false,
        "rollback-health.service rollback-altboot.service copal-boot-check.service",
    );
    has(name, "Service.TimeoutStopSec", true, "20");
}

#[test]
fn the_check_comes_before_every_reader_of_breadcrumbs() {
    let name = "copal-boot-check";
    has(name, "Service.Type", true, "oneshot");
    has(name, "Service.ExecStart", true, "/usr/bin/copal rollback boot-check");
    has(name, "Install.WantedBy", true, "multi-user.target");
    has(name, "Unit.Requires", true, "resin-boot.service resin-state.service mnt-sysroot-active.service");
    has(name, "Unit.After", false, "resin-boot.service resin-state.service mnt-sysroot-active.service");
    has(name, "Unit.After", false, "balena-nonencboot.service mnt-sysroot-inactive.automount");
    // Whoever looks at the journal sees what it has done.
    has(name, "Service.Environment", true, "COPAL_LOG=info");
    has(name, "Unit.Before", false, "rollback-altboot.service rollback-health.service");
    has(name, "Unit.Before", false, "balena-host.service balena.service balena-supervisor.service");
    has(name, "Service.TimeoutStartSec", true, "infinity");
    let unit = unit(name);
    assert!(!unit.contains_key("Service.RemainAfterExit"));
    assert!(!unit.keys().any(|k| k.starts_with("Unit.ConditionPath")), "at every boot");
}

#[test]
fn due_commit_hooks_find_the_engine() {
    let name = "copal-commit-hooks";
    has(name, "Service.Type", true, "oneshot");
    has(name, "Service.ExecStart", true, "/usr/bin/copal rollback commit-hooks");
    has(name, "Unit.ConditionPathExists", true, "/mnt/state/copal/commit-due");
    has(name, "Unit.After", false, "copal-boot-check.service rollback-health.service");
    has(name, "Unit.After", false, "balena-host.service balena.service");
}

#[test]
fn a_verdict_is_carried_out_to_its_end() {
    // And a board program of the flasher, which may be writing a bootloader.
    for name in [
        "copal-boot-check",
        "copal-commit-hooks",
        "rollback-health",
        "rollback-altboot",
        "resin-init-flasher",
    ] {
        has(name, "Service.KillMode", true, "mixed");
        has(name, "Service.TimeoutStopSec", true, "5min");
    }
}

/// Units below which hooks or programs of the board run, but for `copal-job@.service`.
const OF_OTHERS: [&str; 5] =
    ["copal-boot-check", "copal-commit-hooks", "rollback-health", "rollback-altboot", "resin-init-flasher"];

/// What a unit takes away by lists that begin with `~`, and what it gives back by lists behind them.
fn taken_and_given_back(name: &str, key: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let text = fs::read_to_string(folder().join(format!("{name}.service"))).unwrap();
    let prefix = format!("{key}=");
    let (mut taken, mut given) = (BTreeSet::new(), BTreeSet::new());
    for list in text.lines().filter_map(|l| l.strip_prefix(&prefix)) {
        match list.strip_prefix('~') {
            Some(list) => taken.extend(words(list)),
            // Without a list before it, it forbids everything else (systemd.exec(5)).
            None if taken.is_empty() => panic!("{name}: {key}={list} allows nothing else"),
            None => given.extend(words(list)),
        }
    }
    (taken, given)
}

fn taken_away(name: &str, key: &str) -> BTreeSet<String> {
    taken_and_given_back(name, key).0
}

fn words(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn nothing_hides_the_device_from_them() {
    for name in OURS.into_iter().chain(["resin-init-flasher"]) {
        for (key, value) in unit(name) {
            let (_, key) = key.split_once('.').unwrap();
            assert!(!makes_one(key), "{name}: {key}");
            assert!(!key.starts_with("Device") && key != "ProtectClock", "{name}: {key}");
            // dm-crypt finds root's keys through the session keyring.
            assert!(key != "KeyringMode" || value == ["shared"], "{name}: {key}={value:?}");
            assert!(key != "User" && key != "SystemCallArchitectures", "{name}: {key}");
        }
    }
}

#[test]
fn hooks_and_programs_of_the_board_keep_what_they_need() {
    for name in OF_OTHERS {
        for key in unit(name).keys() {
            let never = [
                "RestrictAddressFamilies",
                "RestrictSUIDSGID",
                "MemoryDenyWriteExecute",
                "IPAddressDeny",
                "UMask",
            ];
            assert!(!never.iter().any(|n| key.ends_with(n)), "{name}: {key}");
        }
        let (calls, given_back) = taken_and_given_back(name, "SystemCallFilter");
        assert!(calls.is_subset(&words("@clock @cpu-emulation @debug @obsolete")), "{name}: {calls:?}");
        // Whether the clock is synchronised, which a health check may ask.
        let asks = if calls.contains("@clock") {
            words("adjtimex clock_adjtime clock_adjtime64")
        } else {
            words("")
        };
        assert_eq!(given_back, asks, "{name}");
        assert_eq!(taken_away(name, "RestrictNamespaces"), words("cgroup user"), "{name}");
        let most = "CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_LEASE CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_SYS_PACCT CAP_SYS_TIME
            CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM";
        let capabilities = taken_away(name, "CapabilityBoundingSet");
        assert!(capabilities.is_subset(&words(most)), "{name}: {capabilities:?}");
    }
    // A factory sets the clock, without which no certificate is valid.
    let flasher = "resin-init-flasher";
    assert_eq!(taken_away(flasher, "SystemCallFilter"), words("@cpu-emulation @obsolete"));
    assert!(!taken_away(flasher, "CapabilityBoundingSet").contains("CAP_SYS_TIME"));
}

/// A hook runs below one of these at one time, and below `copal-job@.service` at another.
#[test]
fn a_hook_may_do_the_same_below_each_unit_and_no_less_than_in_a_job() {
    for key in ["SystemCallFilter", "CapabilityBoundingSet"] {
        let (of_hooks, given_back) = taken_and_given_back("rollback-health", key);
        for name in OF_OTHERS.into_iter().filter(|n| *n != "resin-init-flasher") {
            assert_eq!(taken_and_given_back(name, key), (of_hooks.clone(), given_back.clone()), "{name}");
        }
        let (of_jobs, given_to_jobs) = taken_and_given_back("copal-job@", key);
        assert!(of_hooks.is_subset(&of_jobs) && given_to_jobs.is_subset(&given_back), "{key}");
    }
}

#[test]
fn every_unit_has_the_limits_that_cost_nothing() {
    for name in OURS.into_iter().chain(OF_OTHER_TESTS) {
        for key in ["NoNewPrivileges", "LockPersonality", "RestrictRealtime"] {
            has(name, &format!("Service.{key}"), true, "yes");
        }
        // A program that tries gets an error, and is not killed.
        has(name, "Service.SystemCallErrorNumber", true, "EPERM");
    }
}

#[test]
fn nothing_but_copal_itself_runs_where_the_limits_are_tight() {
    let name = "rollback-clear-bootcount";
    // FIBMAP and a remount, for what a power cut has left on FAT.
    has(name, "Service.CapabilityBoundingSet", true, "CAP_DAC_OVERRIDE CAP_SYS_ADMIN CAP_SYS_RAWIO");
    has(name, "Service.RestrictAddressFamilies", true, "AF_UNIX");
    has(name, "Service.RestrictNamespaces", true, "yes");
    has(name, "Service.MemoryDenyWriteExecute", true, "yes");
    let calls = "~@clock @cpu-emulation @debug @module @mount @obsolete @privileged @raw-io @reboot @resources @swap mount";
    has(name, "Service.SystemCallFilter", true, calls);
    let name = "copal-reboot";
    has(name, "Service.CapabilityBoundingSet", true, "CAP_SYS_ADMIN CAP_SYS_BOOT");
    has(name, "Service.RestrictAddressFamilies", true, "AF_UNIX");
    has(name, "Service.RestrictNamespaces", true, "yes");
    has(name, "Service.MemoryDenyWriteExecute", true, "yes");
    // Where systemd does not reboot, this unit does: by `reboot(2)`, which is in `@privileged` as well as in `@reboot`.
    let (taken, given_back) = taken_and_given_back(name, "SystemCallFilter");
    assert!(taken.contains("@privileged") && !taken.contains("@reboot"), "{taken:?}");
    assert_eq!(given_back, words("reboot"));
}

/// The units in the table of `docs/sandbox.md`, with the figures of each.
fn documented_exposure(page: &str) -> Vec<(String, f64, f64)> {
    let table = page.split("\n## Exposure\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let row = |line: &str| {
        let mut cells = line.split('|').skip(1).map(str::trim);
        let name = cells.next()?.strip_prefix('`')?.strip_suffix(".service`")?.to_owned();
        Some((name, cells.next()?.parse().ok()?, cells.next()?.parse().ok()?))
    };
    table.lines().filter_map(row).collect()
}

/// What systemd says of a unit of this text: the figure, and the settings that it misses.
fn exposure(name: &str, text: &str) -> Option<(f64, Vec<String>)> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(format!("{name}.service"));
    fs::write(&file, text).unwrap();
    let out = Command::new("systemd-analyze")
        .args(["security", "--offline=true", "--no-pager"])
        .arg(file)
        .output()
        .ok()?;
    let said = String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap();
    let figure = said.split("exposure level for ").nth(1).unwrap_or_else(|| panic!("{said}"));
    let figure = figure.split_whitespace().nth(1).unwrap().parse().unwrap();
    let missing = said
        .lines()
        .filter_map(|l| l.strip_prefix('✗'))
        .map(|l| l.trim().split(['=', ' ', '/']).next().unwrap().to_owned());
    Some((figure, missing.collect()))
}

#[test]
fn units_are_as_exposed_as_documented() {
    let page = fs::read_to_string(folder().join("../docs/sandbox.md")).unwrap();
    let documented = documented_exposure(&page);
    let named: BTreeSet<&str> = documented.iter().map(|(name, ..)| name.as_str()).collect();
    let all = OURS.into_iter().chain(OF_OTHER_TESTS).collect();
    assert_eq!(named, all);
    let version = Command::new("systemd-analyze").arg("--version").output();
    let version = version.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let limits = [
        "Capability",
        "LockPersonality",
        "MemoryDeny",
        "NoNewPrivileges",
        "Restrict",
        "SystemCall",
        "KeyringMode",
        // Of `copal.service` alone.
        "Device",
        "IPAddressDeny",
        "Private",
        "Protect",
        "RemoveIPC",
        "UMask",
    ];
    for (name, before, now) in &documented {
        let text = fs::read_to_string(folder().join(format!("{name}.service"))).unwrap();
        let without: Vec<&str> =
            text.lines().filter(|l| !limits.iter().any(|limit| l.starts_with(limit))).collect();
        let without = without.join("\n");
        let Some((figure, missing)) = exposure(name, &text) else {
            return not_run(test_name!(), "needs systemd-analyze");
        };
        // Other releases of systemd look at other settings.
        if !version.starts_with("systemd 252 ") {
            assert!(figure < exposure(name, &without).unwrap().0, "{name}");
            continue;
        }
        assert_eq!(figure, *now, "{name}");
        let (figure, _) = exposure(name, &without).unwrap();
        assert_eq!(figure, *before, "{name} without its limits");
        // Whatever is missing has its reason there.
        for setting in missing.iter().filter(|_| name != "copal") {
            assert!(page.contains(&format!("`{setting}")), "{name}: {setting} in sandbox.md");
        }
    }
}

/// A root with our units, enabled, and stand-ins for those that they refer to.
fn root(dir: &Path) {
    let units = dir.join("usr/lib/systemd/system");
    let wants = dir.join("etc/systemd/system/multi-user.target.wants");
    for folder in [&units, &wants, &dir.join("usr/bin"), &dir.join("bin")] {
        fs::create_dir_all(folder).unwrap();
    }
    for program in [
        "usr/bin/copal",
        "usr/bin/rollback-health",
        "usr/bin/rollback-altboot",
        "usr/bin/rollback-clear-bootcount",
        "bin/true",
    ] {
        fs::write(dir.join(program), "#!/bin/sh\n").unwrap();
        fs::set_permissions(dir.join(program), PermissionsExt::from_mode(0o755)).unwrap();
    }
    for target in ["sysinit", "basic", "multi-user", "umount", "shutdown", "network"] {
        fs::write(units.join(format!("{target}.target")), "[Unit]\nDescription=stand-in\n").unwrap();
    }
    let stand_in = |name: &str, unit: &str| {
        let text = format!("[Unit]\n{unit}\n[Service]\nType=oneshot\nExecStart=/bin/true\n");
        fs::write(units.join(format!("{name}.service")), text).unwrap();
    };
    // As meta-balena has them (`recipes-support/resin-mounts`, `recipes-containers`).
    let mount = "DefaultDependencies=no\nBefore=umount.target\nConflicts=umount.target";
    for name in ["resin-boot", "resin-state", "mnt-sysroot-active"] {
        stand_in(name, mount);
    }
    stand_in("balena-nonencboot", &format!("{mount}\nRequires=resin-boot.service\nAfter=resin-boot.service"));
    stand_in(
        "resin-state-reset",
        &format!("{mount}\nRequires=resin-state.service\nAfter=resin-state.service"),
    );
    stand_in("systemd-udev-settle", "DefaultDependencies=no");
    stand_in("openvpn", "After=network.target");
    let engine = "Requires=mnt-sysroot-active.service\nAfter=network.target mnt-sysroot-active.service rollback-altboot.service";
    stand_in("balena", engine);
    stand_in("balena-host", engine);
    stand_in("balena-supervisor", "Wants=balena.service\nAfter=balena.service");
    for name in OURS {
        let file = format!("{name}.service");
        fs::copy(folder().join(&file), units.join(&file)).unwrap();
        symlink(format!("/usr/lib/systemd/system/{file}"), wants.join(&file)).unwrap();
    }
    for file in ["openvpn", "balena", "balena-host", "balena-supervisor"].map(|n| format!("{n}.service")) {
        symlink(format!("/usr/lib/systemd/system/{file}"), wants.join(&file)).unwrap();
    }
}

/// What systemd complains about.
fn verify(dir: &Path, units: &[&str]) -> Option<String> {
    let out =
        Command::new("systemd-analyze").arg("--root").arg(dir).arg("verify").args(units).output().ok()?;
    Some(String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn systemd_finds_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    root(dir.path());
    let names: Vec<String> = OURS.iter().map(|n| format!("{n}.service")).collect();
    let mut units: Vec<&str> = names.iter().map(String::as_str).collect();
    units.push("multi-user.target");
    let Some(complaints) = verify(dir.path(), &units) else {
        return not_run(test_name!(), "needs systemd-analyze");
    };
    assert_eq!(complaints, "");
    // It does look.
    let file = dir.path().join("usr/lib/systemd/system/rollback-altboot.service");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replace("Type=", "Typ=").replace("After=resin-boot", "After=balena.service resin-boot"),
    )
    .unwrap();
    let complaints = verify(dir.path(), &units).unwrap();
    assert!(complaints.contains("Unknown key 'Typ'"), "{complaints}");
    assert!(complaints.contains("ordering cycle"), "{complaints}");
}

#[test]
fn the_rule_makes_the_links_that_everything_is_mounted_by() {
    let text = fs::read_to_string(folder().join("65-resin-update-state.rules")).unwrap();
    let rules: Vec<&str> = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
    let probe = "IMPORT{program}=\"/lib/udev/resin_update_state_probe $devnode";
    assert_eq!(rules.iter().filter(|r| r.contains(probe)).count(), 2, "{text}");
    for link in ["$env{BALENA_FS_USE}", "$env{BALENA_UPDATE_STATE}"] {
        assert!(rules.iter().any(|r| r.contains(&format!("SYMLINK+=\"disk/by-state/{link}\""))), "{link}");
    }
    // Every jump has its label, and every part of a rule an operator and a quoted value.
    let label = rules.last().unwrap();
    assert_eq!(*label, "LABEL=\"resin_update_state_end\"");
    for rule in &rules {
        assert_eq!(rule.matches('"').count() % 2, 0, "{rule}");
        for goto in rule.split("GOTO=\"").skip(1) {
            assert!(goto.starts_with("resin_update_state_end\""), "{rule}");
        }
    }
}
