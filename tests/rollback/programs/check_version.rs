use copal::rollback::check_version::{Age, age, is_new_enough, previous};

use super::device::{OS_RELEASE, copal, device};
use crate::kit::tree::Tree;

fn with(os_release: &str) -> Tree {
    let mut t = device();
    t.file(OS_RELEASE, os_release);
    t
}

#[test]
fn the_boundary_is_2_30_0_itself() {
    for (os_release, expected) in [
        ("VERSION=\"2.29.2-beta.1\"", false),
        ("VERSION=\"2.29.99+rev9\"", false),
        ("VERSION=\"2.9.7+rev2\"", false),
        ("VERSION=\"1.26.0\"", false),
        ("VERSION=\"2.30.0\"", true),
        ("VERSION=\"2.30.0+rev1\"", true),
        // A draft of it has the hooks that it takes.
        ("VERSION=\"2.30.0-1680000000000\"", true),
        ("VERSION=v2.98.11", true),
        ("VERSION=\"10.0.0\"", true),
        // What counts is meta-balena's version, where the product has one of its own.
        ("VERSION=\"2023.1.0\"\nMETA_BALENA_VERSION=\"2.12.0\"", false),
        ("VERSION=\"1.0.0\"\nMETA_BALENA_VERSION=\"2.112.10\"", true),
        ("VERSION=\"2.12.0\"\nMETA_BALENA_VERSION=\"\"", false),
    ] {
        let t = with(os_release);
        assert_eq!(is_new_enough(&t.paths()), expected, "{os_release}");
        let (code, out, err) = copal(&t, &["rollback-check-version"]);
        assert_eq!(code, i32::from(!expected), "{os_release}: {err}");
        if expected {
            assert!(out.starts_with("rollbacks: the previous OS, ") && err.is_empty(), "{out}{err}");
        } else {
            assert!(out.is_empty() && err.contains("[previous-too-old]"), "{out}{err}");
        }
    }
}

#[test]
fn a_version_that_cannot_be_read_takes_nothing_from_anybody() {
    for os_release in ["", "NAME=x", "VERSION=\"kirkstone\"", "VERSION=\"2\"", "META_BALENA_VERSION=\"$(x)\""]
    {
        let t = with(os_release);
        assert!(matches!(age(&t.paths()), Age::Unknown(_)), "{os_release}");
        assert!(is_new_enough(&t.paths()), "{os_release}");
        assert_eq!(copal(&t, &["rollback-check-version"]).0, 0, "{os_release}");
    }
    // Nor does a root without a hostapp, or one that is not mounted.
    assert!(is_new_enough(&Tree::new().paths()));
    assert_eq!(previous(&Tree::new().paths()), None);
}

#[test]
fn of_several_os_release_files_that_of_the_current_hostapp_counts() {
    let mut t = with("VERSION=\"5.3.1\"\n");
    // Older layers, another container, and a leftover at the top.
    for place in ["balena/overlay2/old/diff", "balena/overlay2/older/diff", "hostapps/gone", "."] {
        let path = format!("/mnt/sysroot/inactive/{place}/etc/os-release");
        t.file(&path, "VERSION=\"2.0.0\"\nMETA_BALENA_VERSION=\"1.0.0\"\n");
    }
    assert_eq!(previous(&t.paths()).as_deref(), Some("5.3.1"));
    assert!(is_new_enough(&t.paths()));
}

#[test]
fn the_verb_answers_with_its_exit_code() {
    let (code, out, err) = copal(&with("VERSION=\"5.3.1\""), &["rollback", "check-version", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let line: serde_json::Value = serde_json::from_str(out.trim()).unwrap();
    assert_eq!((&line["ok"], &line["event"]), (&true.into(), &"result".into()));
    let (code, _, err) = copal(&with("VERSION=\"2.3.1\""), &["rollback", "check-version"]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("it is 2.3.1, older than 2.30.0"), "{err}");
}
