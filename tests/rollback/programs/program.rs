//! The names and verbs as callers see them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use copal::state::phase::Phase;
use serde_json::Value;

use super::device::{copal, marker, snapshot, texts, traces, uboot};
use crate::kit::tree::Tree;

fn status(t: &Tree) -> Value {
    let (code, out, err) = copal(t, &["status", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let line: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    line["status"].clone()
}

#[test]
fn status_shows_the_trial_both_releases_and_the_flags_of_the_last_update() {
    let mut t = uboot("2", 1, 1);
    traces(&mut t);
    let before = snapshot(&t);
    let (code, out, err) = copal(&t, &["status"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for line in [
        "phase    trial: the running system is on trial until its health checks have passed",
        "flag     rollback-health-triggered",
        "flag     rollback-altboot-triggered",
        "flag     rollback-health-failed",
    ] {
        assert!(out.lines().any(|l| l == line), "{line:?} in\n{out}");
    }
    assert!(out.lines().any(|l| l.starts_with("slot B   5.3.1, ")), "{out}");
    assert_eq!(snapshot(&t), before, "it reads only");
    let s = status(&t);
    assert_eq!((&s["phase"], &s["running"], &s["next"]), (&"trial".into(), &"A".into(), &"A".into()));
    assert_eq!(s["flags"].as_array().unwrap().len(), 3);
}

#[test]
fn status_has_a_meaning_for_every_phase_it_can_see() {
    let mut seen = BTreeSet::new();
    for (root, upgrade) in [("2", 0), ("2", 1), ("3", 0), ("3", 1)] {
        for kind in ["", "installing", "rolled-back"] {
            let mut t = uboot(root, upgrade, 0);
            if !kind.is_empty() {
                marker(&mut t, kind);
            }
            let s = status(&t);
            assert!(!s["meaning"].as_str().unwrap().is_empty(), "{s}");
            seen.insert(s["phase"].as_str().unwrap().to_owned());
        }
    }
    assert!(seen.len() >= 6 && seen.len() <= Phase::ALL.len(), "{seen:?}");
}

#[test]
fn units_rule_and_shell_files_are_documented() {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/rollback.md")).unwrap();
    for name in [
        "copal-boot-check.service",
        "rollback-health.service",
        "rollback-altboot.service",
        "rollback-clear-bootcount.service",
        "65-resin-update-state.rules",
        "rollback-health",
        "rollback-altboot",
        "rollback-stop",
        "rollback-tests",
        "rollback-check-version",
        "rollback-clear-bootcount",
        "rollback-parse-bootloader",
        "resin_update_state_probe",
        "BOOTLOADER_FILE",
        "current_part_idx",
        "/etc/copal/rollback.conf",
    ] {
        assert!(text.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn wrong_arguments_end_with_2_and_change_nothing() {
    let t = uboot("2", 1, 2);
    let before = snapshot(&t);
    for args in [
        &["rollback-stop", "--whatever"][..],
        &["rollback-stop", "x"],
        &["rollback-health", "60", "15", "1"],
        &["rollback-altboot", "x"],
        &["rollback-clear-bootcount", "--whatever"],
        &["rollback-check-version", "x"],
        &["rollback", "stop", "--whatever"],
        &["rollback", "health", "--whatever"],
        &["rollback", "nothing"],
        // Never released names of `mark-good`, `now` and `copal status`.
        &["rollback", "good"],
        &["rollback", "back"],
        &["rollback", "status"],
    ] {
        let (code, out, err) = copal(&t, args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains("[usage]") && err.lines().count() == 1, "{args:?}: {err}");
    }
    assert_eq!(snapshot(&t), before);
}

#[test]
fn the_link_is_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let t = uboot("2", 1, 2);
    for (name, said) in [("rollback-check-version", "5.3.1"), ("rollback-stop", "the trial is over")] {
        let link = dir.path().join(name);
        symlink(env!("CARGO_BIN_EXE_copal"), &link).unwrap();
        let out = Command::new(&link).arg("--root").arg(t.paths().root()).output().unwrap();
        let (code, out, err) = texts(&out);
        assert_eq!(code, 0, "{name}: {err}");
        assert!(out.contains(said), "{name}: {out}");
    }
    // udev calls this one by its path, and takes lines of KEY=value.
    let link = dir.path().join("resin_update_state_probe");
    symlink(env!("CARGO_BIN_EXE_copal"), &link).unwrap();
    let (code, out, err) =
        texts(&Command::new(&link).args(["/dev/nowhere1", "resin-boot", "nowhere"]).output().unwrap());
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
}

#[test]
fn the_health_checks_by_themselves() {
    // Nothing is installed in this tree: the engine cannot be healthy.
    let t = uboot("2", 1, 0);
    let before = snapshot(&t);
    let (code, out, err) = copal(&t, &["rollback", "tests"]);
    assert_eq!(code, 1, "{err}");
    assert!(out.lines().any(|l| l.starts_with("FAILED  engine: ")), "{out}");
    assert!(err.contains("[health-check-failed]"), "{err}");
    let (code, out, _) = copal(&t, &["rollback", "tests", "--json"]);
    assert_eq!(code, 1);
    let lines: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines[0]["rollback"]["checks"].as_array().unwrap().len(), 4, "{out}");
    assert_eq!(lines.last().unwrap()["code"], "health-check-failed");
    assert_eq!(snapshot(&t), before);
}

/// A service of extensions tests a change of its own, outside an update.
#[test]
fn rollback_tests_compares_with_the_file_that_its_caller_names() {
    let mut t = uboot("2", 0, 0);
    t.file("mnt/state/extension-health-variables", "BALENAOS_ROLLBACK_VPNONLINE=1\n");
    t.file("mnt/state/rollback-health-variables", "BALENAOS_ROLLBACK_VPNONLINE=0\n");
    let vpn = |variables: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        command
            .args(["rollback-tests", "--root"])
            .arg(t.paths().root())
            .env_remove("ROLLBACK_HEALTH_VARIABLES");
        let (_, out, _) =
            texts(&command.envs(variables.map(|v| ("ROLLBACK_HEALTH_VARIABLES", v))).output().unwrap());
        assert_eq!(out.contains("before the change"), variables.is_some_and(|v| v.starts_with('/')), "{out}");
        out.lines().find_map(|l| l.split_once("vpn: ")).map(|(result, _)| result.trim().to_owned()).unwrap()
    };
    assert_eq!(vpn(None), "ok");
    assert_eq!(vpn(Some("/mnt/state/extension-health-variables")), "FAILED");
    assert_eq!(vpn(Some("/mnt/state/missing")), "unknown");
    for ignored in ["", "mnt/state/extension-health-variables"] {
        assert_eq!(vpn(Some(ignored)), "ok", "{ignored:?}");
    }
}

#[test]
fn without_anything_to_do_the_services_end_at_once() {
    let t = uboot("2", 0, 0);
    let before = snapshot(&t);
    for args in [
        &["rollback-altboot"][..],
        &["rollback-health", "60", "15"],
        // A slip in the shim is no reason to give up a trial.
        &["rollback-health", "10s", "-1"],
        &["rollback", "boot-check"],
    ] {
        let (code, out, err) = copal(&t, args);
        assert_eq!((code, out.trim()), (0, ""), "{args:?}: {err}");
    }
    assert_eq!(snapshot(&t), before);
}
