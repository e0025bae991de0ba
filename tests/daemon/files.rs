//! Unit, activation and policy, as they are shipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bus::{NAME, has};
use crate::kit::mount_namespace;

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(name)
}

fn text(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

/// Settings of a unit, without comments.
fn settings(unit: &str) -> Vec<(String, String)> {
    let unit = text(shipped(unit));
    let lines = unit.lines().filter(|l| !l.starts_with('#'));
    lines.filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

#[test]
fn the_files_belong_together() {
    let service = settings("copal.service");
    let has = |key: &str, value: &str| service.iter().any(|(k, v)| k == key && v == value);
    assert!(has("Type", "notify") && has("BusName", NAME) && has("ExecStart", "/usr/bin/copal daemon"));
    assert!(has("Restart", "on-failure"));
    // A plan that reads an image is answered although the service has begun to leave.
    assert!(has("TimeoutStopSec", "5min"));
    // No job runs below it, and a flood of calls has a limit.
    assert!(!service.iter().any(|(k, _)| k == "KillMode"));
    for limit in ["MemoryMax", "TasksMax"] {
        assert!(service.iter().any(|(k, _)| k == limit), "{limit}");
    }
    let job = settings("copal-job@.service");
    let has = |key: &str, value: &str| job.iter().any(|(k, v)| k == key && v == value);
    assert!(
        has("ExecStart", "/usr/bin/copal job %i") && has("ExecStopPost", "/usr/bin/copal job %i --ended")
    );
    assert!(has("TimeoutStopSec", "5min") && has("Wants", "copal.service"));
    // The end of copal's process does not kill a hook that writes a bootloader.
    assert!(has("KillMode", "process") && has("OOMPolicy", "continue"));
    let after: Vec<&str> =
        job.iter().filter(|(k, _)| k == "After").flat_map(|(_, v)| v.split_whitespace()).collect();
    for later in
        ["mnt-boot.mount", "resin-state.service", "balena-host.service", "rollback-clear-bootcount.service"]
    {
        assert!(after.contains(&later), "{later} is stopped after a job");
    }
    let reboot = settings("copal-reboot.service");
    let has = |key: &str, value: &str| reboot.iter().any(|(k, v)| k == key && v == value);
    assert!(has("DefaultDependencies", "no"), "a shutdown does not stop it");
    assert!(!reboot.iter().any(|(k, _)| k == "Conflicts" || k == "Before"));
    let activation = text(shipped("io.balena.Copal1.service"));
    for line in [format!("Name={NAME}").as_str(), "SystemdService=copal.service", "User=root"] {
        assert!(activation.lines().any(|l| l == line), "{line}");
    }
}

#[test]
fn the_units_of_jobs_and_reboot_have_no_mount_namespace_of_their_own() {
    for unit in ["copal-job@.service", "copal-reboot.service"] {
        for (key, _) in settings(unit) {
            assert!(!mount_namespace::makes_one(&key), "{unit}: {key}");
        }
    }
}

#[test]
fn the_unit_is_as_exposed_as_documented() {
    if !has("exposure", &["systemd-analyze"]) {
        return;
    }
    let analyze = |verb: &[&str]| {
        let out = Command::new("systemd-analyze").args(verb).arg(shipped("copal.service")).output().unwrap();
        String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap()
    };
    let said = analyze(&["security", "--offline=true", "--no-pager"]);
    let exposure = |text: &str, before: &str| -> f64 {
        let rest = text.split(before).nth(1).unwrap_or_else(|| panic!("{before}: {text}"));
        rest.split_whitespace().next().unwrap().trim_end_matches([',', '.']).parse().unwrap()
    };
    let now = exposure(&said, "Overall exposure level for copal.service: ");
    let documents = text(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/dbus.md"));
    let documented = exposure(&documents, "Overall exposure level: ");
    assert!(now <= documented, "{now} > {documented}");
    let wrong: Vec<String> = analyze(&["verify", "--man=no"])
        .lines()
        .filter(|l| l.contains("copal.service") && !l.contains("/usr/bin/copal is not executable"))
        .map(str::to_owned)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    // Whatever is missing has its reason there.
    for line in said.lines().filter(|l| l.starts_with('✗')) {
        let setting = line.trim_start_matches('✗').trim().split(['=', ' ']).next().unwrap();
        let first = setting.split('/').next().unwrap();
        assert!(documents.contains(first), "{first} in dbus.md: {line}");
    }
}
