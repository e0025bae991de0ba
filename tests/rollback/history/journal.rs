//! The last lines of a boot's journal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use copal::state::history::journal_of_this_boot;

use super::support::Device;
use crate::kit::needs::{not_run, test_name};
use crate::kit::process::HANG;

fn journalctl(place: &str, text: &str) -> Device {
    let device = Device::new();
    let path = device.paths().at(place);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    device
}

fn lines(device: &Device) -> Vec<String> {
    journal_of_this_boot(&device.paths(), 3)
}

#[test]
fn the_last_lines_of_this_boot_are_asked_for() {
    for place in ["/usr/bin/journalctl", "/bin/journalctl"] {
        let device = journalctl(place, "echo \"$@\"; echo two; echo something >&2");
        let asked = "--boot --output=short-iso --no-pager --quiet --lines 3";
        assert_eq!(lines(&device), [asked, "two"]);
    }
}

#[test]
fn lines_are_harmless_few_and_short() {
    let device = journalctl(
        "/usr/bin/journalctl",
        "i=0; while [ $i -lt 5000 ]; do echo $i; i=$((i+1)); done; printf 'a\\033[2Jb\\n'; head -c 100000 /dev/zero | tr '\\0' 'ä'; echo",
    );
    let said = lines(&device);
    assert_eq!(said.len(), 3);
    assert!(said.iter().all(|l| l.len() <= 400 && l.chars().all(|c| !c.is_control())), "{said:?}");
    let device = journalctl("/usr/bin/journalctl", "printf 'x\\033[2Jy\\n'");
    assert_eq!(lines(&device), ["x\\u{1b}[2Jy"]);
}

#[test]
fn where_there_is_no_journal_the_record_says_why() {
    assert_eq!(lines(&Device::new()), ["-- no journal: journalctl is not installed --"]);
    for (text, why) in [
        (
            "echo 'No journal files were found.' >&2; exit 1",
            "it ended with status 1: No journal files were found.",
        ),
        ("exit 1", "it ended with status 1"),
        ("exit 0", "it has no lines of this boot"),
        ("echo 'no such boot' >&2", "no such boot"),
        ("kill -9 $$", "it was ended by SIGKILL"),
    ] {
        let said = lines(&journalctl("/usr/bin/journalctl", text));
        assert_eq!(said, [format!("-- the journal cannot be read: {why} --")]);
    }
    let said = lines(&journalctl("/usr/bin/journalctl", "echo one; exit 1"));
    assert_eq!(said, ["one", "-- the journal may have more: it ended with status 1 --"]);
}

#[test]
fn a_journal_that_does_not_answer_is_not_waited_for() {
    let device = journalctl("/usr/bin/journalctl", "echo one; exec sleep 1000");
    let begun = Instant::now();
    let said = lines(&device);
    assert!(begun.elapsed() < HANG, "{:?}", begun.elapsed());
    assert_eq!(said[0], "one");
    assert!(said[1].contains("taken longer than 10 s"), "{said:?}");
}

/// The program itself knows the options, whatever it has to show here.
#[test]
fn systemds_own_program_takes_the_options() {
    let real =
        ["/usr/bin/journalctl", "/bin/journalctl"].into_iter().find(|p| std::path::Path::new(p).exists());
    let Some(real) = real else {
        return not_run(test_name!(), "needs journalctl");
    };
    let device = Device::new();
    let place = device.paths().at("/usr/bin/journalctl");
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(real, place).unwrap();
    let said = lines(&device);
    assert!(!said.is_empty() && said.len() <= 4, "{said:?}");
    assert!(said.iter().all(|l| !l.contains("option") && !l.contains("argument")), "{said:?}");
}
