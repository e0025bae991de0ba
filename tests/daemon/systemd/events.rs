//! The events of a flash, in a stand-in for the journal and in the real one.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use copal::sys::log::{self, Voice, events};

use super::journal::{Entry, Journal, ROOT, VOICE};
use super::{CHILD, is_child};
use crate::kit::needs::{has, is_root, needs};

/// Arguments of the child, one in a line.
const ARGUMENTS: &str = "COPAL_TEST_ARGUMENTS";

#[test]
fn a_verb_as_the_tests_call_it() {
    // Started by the tests below only.
    if is_child() {
        log::start_below(Voice::Verb, Path::new(&std::env::var_os(ROOT).unwrap()));
        let arguments = std::env::var(ARGUMENTS).unwrap();
        let arguments: Vec<OsString> = arguments.lines().map(OsString::from).collect();
        let _code = copal::cli::run(&arguments, &[]);
    }
}

/// What `copal ARGUMENTS` leaves in the journal.
fn left_by(arguments: &[&str]) -> Vec<Entry> {
    let journal = Journal::new();
    let test = "systemd::events::a_verb_as_the_tests_call_it";
    journal.run(test, "verb", |c| {
        c.env(ARGUMENTS, arguments.join("\n"));
    });
    journal.entries()
}

fn ids(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|e| e["MESSAGE_ID"].as_str()).collect()
}

#[test]
fn a_flash_starts_and_finishes() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (image, target) = (path("image"), path("target"));
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    let entries = left_by(&["flash", "--force-raw", "--image", &image, "--target", &target]);
    assert_eq!(ids(&entries), [events::FLASH_STARTED, events::FLASH_FINISHED], "{entries:?}");
    assert!(entries.iter().all(|e| e["COPAL_DEVICE"] == target && e["PRIORITY"] == "6"), "{entries:?}");
    assert_eq!(entries[0]["COPAL_IMAGE"], image);
    assert_eq!(entries[1]["COPAL_DIGEST"].len(), 64);
    assert_eq!(left_by(&["flash", "--plan", "--force-raw", "--image", &image, "--target", &target]), []);
}

#[test]
fn a_flash_that_fails_is_one_event_with_its_code() {
    for json in [false, true] {
        let mut arguments = vec!["flash", "--image", "/nonexistent/image", "--target", "/nonexistent/target"];
        arguments.extend(json.then_some("--json"));
        let entries = left_by(&arguments);
        assert_eq!(ids(&entries), [events::FLASH_FAILED], "{entries:?}");
        assert_eq!(entries[0]["COPAL_ERROR_CODE"], "image-missing");
        assert_eq!(entries[0]["PRIORITY"], "3");
        arguments.push("--plan");
        assert_eq!(left_by(&arguments), [], "nobody wanted a flash");
    }
    assert_eq!(left_by(&["flash", "--no-such-flag"]), []);
}

#[test]
fn a_disk_that_is_passed_over_is_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let (conf, image) = (dir.path().join("conf"), dir.path().join("image"));
    std::fs::write(&conf, "INTERNAL_DEVICE_KERNEL=null\n").unwrap();
    std::fs::write(&image, vec![7; 1 << 20]).unwrap();
    let (conf, image) = (conf.to_str().unwrap(), image.to_str().unwrap());
    let entries = left_by(&["flash", "--image-only", "--force-raw", "--conf", conf, "--image", image]);
    assert_eq!(ids(&entries), [events::TARGET_REJECTED, events::FLASH_FAILED], "{entries:?}");
    assert_eq!(entries[0]["COPAL_DEVICE"], "/dev/null");
    assert_eq!(entries[0]["COPAL_ERROR_CODE"], "target-not-disk");
    assert!(entries[0]["MESSAGE"].starts_with("/dev/null is not the target: "), "{entries:?}");
    assert_eq!(entries[1]["COPAL_ERROR_CODE"], "no-target");
}

/// systemd's own daemon, in a mount namespace where nobody else's journal is; prints its entries as JSON.
const REAL: &str = r#"set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d /run/log/journal /run/root
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=no\nForwardToWall=no\n' >/run/systemd/journald.conf.d/test.conf
ln -s /run /run/root/run
/lib/systemd/systemd-journald & journald=$!
trap 'kill $journald' EXIT
for i in $(seq 200); do [ ! -S /run/systemd/journal/socket ] || break; sleep 0.05; done
for test in systemd::journal::a_legacy_name_speaks_in_both_places systemd::journal::an_entry_of_any_size_arrives; do
    "$1" "$test" --exact --test-threads=1 >/dev/null 2>&1
done
for i in $(seq 200); do
    journalctl -D /run/log/journal -o json --all -t resin-init-flasher >/run/out
    [ "$(wc -l </run/out)" -lt 6 ] || break
    sleep 0.05
done
cat /run/out"#;

#[test]
fn the_real_journal_takes_every_entry() {
    needs!(is_root, |test| has(test, "journalctl"), |test| has(test, "unshare"));
    let out = Command::new("unshare")
        .args(["--mount", "sh", "-c", REAL, "sh"])
        .arg(std::env::current_exe().unwrap())
        .envs([(CHILD, "1"), (ROOT, "/run/root"), (VOICE, "legacy")])
        .env_remove(log::LEVEL_VARIABLE)
        .output()
        .unwrap();
    let lines = String::from_utf8(out.stdout).unwrap();
    let errors = String::from_utf8_lossy(&out.stderr);
    let entries: Vec<serde_json::Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(entries.len(), 6, "{errors}");
    let expected = [
        (0, "MESSAGE", "write: 5 %"),
        (0, "COPAL_STAGE", "write"),
        (0, "COPAL_PERCENT", "5"),
        (1, "MESSAGE_ID", events::TARGET_REJECTED),
        (1, "COPAL_DEVICE", "/dev/sda"),
        (2, "PRIORITY", "4"),
        (3, "MESSAGE_ID", events::FLASH_FAILED),
        (3, "COPAL_ERROR_CODE", "io"),
        (3, "PRIORITY", "3"),
        (4, "COPAL_DEVICE", "a\nb"),
        (5, "MESSAGE", "short"),
    ];
    for (i, field, value) in expected {
        assert_eq!(entries[i][field], value, "{i} {field}");
    }
    assert_eq!(entries[4]["MESSAGE"].as_str().unwrap().len(), 3 << 20);
}
