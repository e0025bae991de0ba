//! `copal status` on the old system, after a rollback: what failed, when, how often.

use std::process::Command;

use copal::error::{Code, Error};
use copal::slot::Slot;
use copal::state::history::{self, Carried, Check, CheckResult, Event, Hook, Record, Side, Why};
use serde_json::Value;

use super::support::{rollback, small};
use crate::kit::tree::{GIB, MIB, Tree};

/// A device with U-Boot: A (partition 2) runs release 5.3.1, B holds 6.0.0, which was rolled back.
fn device() -> Tree {
    let mut t = Tree::new();
    t.disk("mmcblk0", "179:0", 16 * GIB);
    for (n, bytes) in [(1, 40 * MIB), (2, GIB), (3, GIB), (5, 20 * MIB)] {
        t.part("mmcblk0", &format!("mmcblk0p{n}"), &format!("179:{n}"), bytes);
    }
    t.udev("179:2", &[("ID_FS_LABEL", "resin-rootA")]).udev("179:3", &[("ID_FS_LABEL", "resin-rootB")]);
    t.mount("179:1", "/mnt/boot", "vfat", "/dev/mmcblk0p1", "rw");
    t.mount("179:5", "/mnt/state", "ext4", "/dev/mmcblk0p5", "rw");
    t.mount("179:2", "/mnt/sysroot/active", "ext4", "/dev/mmcblk0p2", "ro");
    t.mount("179:3", "/mnt/sysroot/inactive", "ext4", "/dev/mmcblk0p3", "rw");
    t.folder("/mnt/state").folder("/run").file("/proc/sys/kernel/random/boot_id", "boot\n");
    for (place, version) in [("active", "5.3.1"), ("inactive", "6.0.0")] {
        let root = format!("/mnt/sysroot/{place}");
        t.folder(&format!("{root}/balena/volumes/v/_data"));
        t.link(&format!("{root}/hostapps/{place}id/boot"), "../../balena/volumes/v/_data");
        t.link(&format!("{root}/current"), &format!("hostapps/{place}id"));
        t.file(&format!("{root}/balena/image/overlay2/layerdb/mounts/{place}id/mount-id"), "top");
        t.file(
            &format!("{root}/balena/overlay2/top/diff/etc/os-release"),
            &format!("VERSION=\"{version}\"\n"),
        );
    }
    t.file("/mnt/boot/resinOS_uEnv.txt", "resin_root_part=2\nupgrade_available=0\n");
    t.file("/mnt/state/rollback-health-triggered", "");
    t
}

fn side(slot: Slot, version: &str) -> Option<Side> {
    Some(Side { slot, version: Some(version.into()) })
}

fn at(time: &str, record: Record) -> Record {
    Record { time: time.into(), ..record }
}

fn installed() -> Record {
    Record {
        image: Some("registry2.balena-cloud.com/v2/0123@sha256:89ab".into()),
        from: side(Slot::A, "5.3.1"),
        to: side(Slot::B, "6.0.0"),
        hooks: vec![Hook { name: "before".into(), status: Some(0) }],
        ..at("2025-11-21T16:00:00Z", Record::new("t2", Event::Installed))
    }
}

fn rolled_back() -> Record {
    let check = |name: &str, required, result, reason: &str| Check {
        name: name.into(),
        required,
        result,
        reason: reason.into(),
        seconds: 1.0,
    };
    Record {
        from: side(Slot::B, "6.0.0"),
        to: side(Slot::A, "5.3.1"),
        checks: vec![
            check("app", false, CheckResult::Failed, "no answer"),
            check("vpn", true, CheckResult::Passed, ""),
            check(
                "engine",
                true,
                CheckResult::Failed,
                "failed 15 of 15 times: balena-healthcheck ended with status 1",
            ),
            check("board", true, CheckResult::Failed, ""),
            check("units", false, CheckResult::Unknown, "no snapshot"),
        ],
        hooks: vec![Hook { name: "old-system".into(), status: Some(3) }],
        error: Some(Error::new(Code::HookFailed, "cannot run the hooks")),
        journal: vec!["2025-11-21T16:19:00+0000 b engine[7]: no space left".into(), "\u{1b}[2J".into()],
        ..at("2025-11-21T16:20:00Z", rollback(0))
    }
}

fn keep(t: &Tree, records: &[Record]) {
    records.iter().for_each(|r| history::append(&t.paths(), r));
}

fn copal(t: &Tree, args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_copal"))
        .arg("status")
        .args(args)
        .arg("--root")
        .arg(t.paths().root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn json(t: &Tree, args: &[&str]) -> Value {
    let out = copal(t, &[&["--json"], args].concat());
    let line: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    line["status"].clone()
}

#[test]
fn the_old_system_says_why_it_is_back() {
    let t = device();
    keep(&t, &[installed(), rolled_back()]);
    let shown = copal(&t, &[]);
    let shown = shown.replace(t.paths().root().to_str().unwrap(), "");
    assert_eq!(
        shown,
        "rolled back from 6.0.0 on 21 Nov 2025: health check `engine` failed 15 of 15 times: balena-healthcheck ended with status 1; `board` failed too
phase    healthy: no update is under way
slot A   5.3.1, on mmcblk0p2 (partition 2), runs now, boots next
slot B   6.0.0, on mmcblk0p3 (partition 3)
boot     U-Boot selects slot A (partition 2), not on trial
         /mnt/boot/resinOS_uEnv.txt
flag     rollback-health-triggered
updated  21 Nov 2025 16:00 UTC: installed 6.0.0 in slot B, from registry2.balena-cloud.com/v2/0123@sha256:89ab
rollback 21 Nov 2025 16:20 UTC: from 6.0.0 in slot B to 5.3.1 in slot A: the health checks failed 15 times
         check engine failed 15 of 15 times: balena-healthcheck ended with status 1
         check board failed
         check app (not required) failed: no answer
         hooks old-system ended with status 3
         cannot run the hooks [hook-failed]
         the new system had started 2 times
         `copal status --log` shows the last lines of the journal of slot B
"
    );
    let s = json(&t, &[]);
    assert_eq!(s["last_rollback"], serde_json::from_str::<Value>(&rolled_back().line()).unwrap());
    assert_eq!(s["last_update"]["event"], "installed");
    assert_eq!((&s["rollbacks"], s.get("history")), (&1.into(), None));
}

#[test]
fn an_update_that_failed_says_why() {
    let t = device();
    let hooks = vec![Hook { name: "before".into(), status: Some(7) }];
    let error = Some(Error::new(Code::HookFailed, "cannot run the before hooks"));
    let carried = Carried {
        name: "own.dtb".into(),
        size: 42_424,
        sha256: "0f".repeat(32),
        origin: "custom_fdt_file".into(),
    };
    keep(&t, &[Record { event: Event::UpdateFailed, hooks, error, carried: vec![carried], ..installed() }]);
    let shown = copal(&t, &[]);
    let told =
        "updated  21 Nov 2025 16:00 UTC: installing registry2.balena-cloud.com/v2/0123@sha256:89ab FAILED
         hooks before ended with status 7
         boot/own.dtb was carried (custom_fdt_file, 41.4 KiB)
         cannot run the before hooks [hook-failed]
";
    assert!(shown.ends_with(told), "{shown}");
}

#[test]
fn the_lines_of_the_journal_are_shown_when_they_are_asked_for() {
    let t = device();
    assert_eq!(copal(&t, &["--log"]), "no rollback is known\n");
    keep(&t, &[rolled_back(), installed()]);
    assert_eq!(copal(&t, &["--log"]), "2025-11-21T16:19:00+0000 b engine[7]: no space left\n\\u{1b}[2J\n");
    keep(&t, &[Record { journal: Vec::new(), ..rolled_back() }]);
    assert_eq!(
        copal(&t, &["--log"]),
        "the record of the rollback of 21 Nov 2025 16:20 UTC does not have journal lines\n"
    );
}

#[test]
fn every_record_is_shown_when_it_is_asked_for() {
    let t = device();
    assert_eq!(copal(&t, &["--history"]), "no update is known\n");
    let failed = Record {
        error: Some(Error::new(Code::SlotFull, "cannot unpack")),
        to: Some(Side { slot: Slot::B, version: None }),
        hooks: Vec::new(),
        ..at("2025-11-20T10:00:00Z", Record { event: Event::UpdateFailed, ..installed() })
    };
    let altboot = Record {
        bootcount: 4,
        hooks: vec![Hook { name: "own".into(), status: None }],
        ..at(
            "2025-11-20T12:00:00Z",
            Record {
                from: side(Slot::B, "6.0.0"),
                to: side(Slot::A, "5.3.1"),
                ..Record::new("t1", Event::Altboot)
            },
        )
    };
    let committed = at(
        "2025-11-22T08:00:00Z",
        Record { event: Event::Committed, hooks: Vec::new(), attempts: 1, ..installed() },
    );
    let stuck = at("2025-11-23T08:00:00Z", Record { from: None, ..Record::new("t3", Event::RollbackFailed) });
    keep(&t, &[failed, altboot, rolled_back(), committed, stuck]);
    let shown = copal(&t, &["--history"]);
    assert_eq!(
        shown,
        "TIME (UTC)         EVENT            RELEASE                 DETAILS
20 Nov 2025 10:00  update failed    slot B                  from registry2.balena-cloud.com/v2/0123@sha256:89ab; cannot unpack [slot-full]
20 Nov 2025 12:00  rolled back      6.0.0 (B) to 5.3.1 (A)  it did not reach its health checks, and the bootloader fell back, with a boot count of 4; hooks own could not start, or a signal ended them
21 Nov 2025 16:20  rolled back      6.0.0 (B) to 5.3.1 (A)  health check `engine` failed 15 of 15 times: balena-healthcheck ended with status 1; check board failed; check app (not required) failed: no answer; hooks old-system ended with status 3; cannot run the hooks [hook-failed]; the new system had started 2 times
22 Nov 2025 08:00  committed        6.0.0 (B)
23 Nov 2025 08:00  rollback failed  unknown to unknown
"
    );
    let s = json(&t, &["--history"]);
    let events: Vec<&str> =
        s["history"].as_array().unwrap().iter().map(|r| r["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["update-failed", "altboot", "rolled-back", "committed", "rollback-failed"]);
    assert_eq!(
        (&s["last_update"]["event"], &s["last_rollback"]["event"]),
        (&"committed".into(), &"rollback-failed".into())
    );
}

/// What nobody has checked is told neither as failed checks nor as a proof.
#[test]
fn a_verdict_is_reported_with_its_reason() {
    let back = "from 6.0.0 in slot B to 5.3.1 in slot A";
    for (event, why, attempts, told) in [
        (Event::RolledBack, Some(Why::Checks), 1, format!("{back}: the health checks failed once")),
        (Event::RolledBack, Some(Why::Requested), 0, format!("{back}: an operator requested it")),
        (Event::RolledBack, None, 2, format!("{back}: the health checks failed 2 times")),
        (Event::RolledBack, None, 0, format!("{back}: the reason was not recorded")),
        (Event::RolledBack, Some(Why::Unknown), 0, format!("{back}: the reason was not recorded")),
        (Event::Committed, Some(Why::Checks), 1, "5.3.1 in slot A was committed".into()),
        (
            Event::Committed,
            Some(Why::Requested),
            0,
            "5.3.1 in slot A was committed without checks: an operator requested it".into(),
        ),
        (
            Event::Committed,
            Some(Why::TooOld),
            0,
            "5.3.1 in slot A was committed without checks: the previous system is too old for a rollback"
                .into(),
        ),
        (Event::Committed, None, 3, "5.3.1 in slot A was committed".into()),
        (Event::Committed, None, 0, "5.3.1 in slot A was committed without checks".into()),
    ] {
        let t = device();
        let (from, to) = (side(Slot::B, "6.0.0"), side(Slot::A, "5.3.1"));
        let record = Record { event, why, attempts, from, to, ..small(1) };
        keep(&t, &[at("2025-11-21T16:20:00Z", record)]);
        let shown = copal(&t, &[]);
        assert!(shown.ends_with(&format!(" 21 Nov 2025 16:20 UTC: {told}\n")), "{told}: {shown}");
    }
    // As an earlier release has written it.
    let t = device();
    let line = rolled_back().line().replace("\"why\":null,", "");
    assert!(!line.contains("why"), "{line}");
    let file = t.paths().at("/mnt/state/copal/history.jsonl");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, line).unwrap();
    assert!(copal(&t, &[]).contains(": the health checks failed 15 times\n"));
}

/// The first line of `copal status`.
fn first_line(t: &Tree) -> String {
    copal(t, &[]).lines().next().unwrap().to_owned()
}

const HEALTHY: &str = "phase    healthy: no update is under way";

#[test]
fn each_kind_of_rollback_is_told_first() {
    let way = |event| Record {
        from: side(Slot::B, "6.0.0"),
        to: side(Slot::A, "5.3.1"),
        ..at("2025-11-21T16:20:00Z", Record::new("t2", event))
    };
    let requested = Record { why: Some(Why::Requested), ..way(Event::RolledBack) };
    let altboot = Record { bootcount: 4, ..way(Event::Altboot) };
    let back = "rolled back from 6.0.0 on 21 Nov 2025";
    for (record, told) in [
        (requested, format!("{back}: an operator requested it")),
        (
            altboot.clone(),
            format!(
                "{back}: it did not reach its health checks, and the bootloader fell back, with a boot count of 4"
            ),
        ),
        (
            Record { resets: 3, ..altboot },
            format!(
                "{back}: it was restarted before its health checks had ended, and the bootloader fell back, with a boot count of 4"
            ),
        ),
        (way(Event::RolledBack), format!("{back}: the reason was not recorded")),
        (Record { attempts: 3, ..way(Event::RolledBack) }, format!("{back}: the health checks failed 3 times")),
        (
            Record { from: side(Slot::B, "6.0\u{1b}[2J"), ..way(Event::Altboot) },
            "rolled back from 6.0\\u{1b}[2J on 21 Nov 2025: it did not reach its health checks, and the bootloader fell back"
                .into(),
        ),
    ] {
        let t = device();
        keep(&t, &[installed(), record]);
        assert_eq!(first_line(&t), told);
    }
    // A failed one says also why it was begun, and a later boot may have completed it.
    let mut t = device();
    let error = Some(Error::new(Code::BootStateUnwritable, "cannot select slot A"));
    let failed = Record { transaction: rolled_back().transaction, error, ..way(Event::RollbackFailed) };
    keep(&t, &[installed(), rolled_back(), failed.clone(), failed]);
    let why = "health check `engine` failed 15 of 15 times: balena-healthcheck ended with status 1; `board` failed too";
    assert_eq!(first_line(&t), format!("{back}: {why}"));
    t.mount("179:3", "/mnt/sysroot/active", "ext4", "/dev/mmcblk0p3", "ro");
    t.mount("179:2", "/mnt/sysroot/inactive", "ext4", "/dev/mmcblk0p2", "rw");
    let (mut records, table) =
        (history::read(&t.paths()), std::fs::read_to_string(t.paths().at("/proc/self/mountinfo")).unwrap());
    let swapped: String = table
        .lines()
        .filter(|l| {
            !(l.contains(" 179:2 /") && l.contains("/active")
                || l.contains(" 179:3 /") && l.contains("/inactive"))
        })
        .map(|l| format!("{l}\n"))
        .collect();
    t.file("/proc/self/mountinfo", &swapped);
    assert_eq!(
        first_line(&t),
        format!(
            "the rollback from 6.0.0 FAILED on 21 Nov 2025: cannot select slot A; the reason to roll back: {why}"
        )
    );
    // The system that is being rolled back still runs.
    records.truncate(2);
    std::fs::remove_file(t.paths().at("/mnt/state/copal/history.jsonl")).unwrap();
    keep(&t, &records);
    t.file("/run/copal/marker", r#"{"kind":"rolled-back","boot_id":"boot","target":"A","transaction":"t"}"#);
    assert_eq!(first_line(&t), format!("rolling back from 6.0.0: {why}"));
}

/// As long as it is the last verdict, and no other release was installed.
#[test]
fn a_rollback_is_told_first_until_something_else_happened() {
    let later = |event| at("2025-11-22T08:00:00Z", Record::new("t3", event));
    for (event, is_first) in [
        (Event::Committed, false),
        (Event::Installed, false),
        (Event::UpdateFailed, true),
        (Event::Unknown, true),
    ] {
        let t = device();
        keep(&t, &[installed(), rolled_back(), later(event)]);
        let first = first_line(&t);
        assert_eq!(first.starts_with("rolled back from 6.0.0 on 21 Nov 2025: "), is_first, "{first}");
        assert!(is_first || first == HEALTHY, "{first}");
        // It is told further below in any case.
        assert!(copal(&t, &[]).contains("\nrollback 21 Nov 2025 16:20 UTC: from 6.0.0"), "{first}");
    }
}

/// This year has no number. A clock that was wrong does not mislead.
#[test]
fn times_are_for_people() {
    let t = device();
    let now = Record::new("t2", Event::Altboot);
    let (from, to) = (side(Slot::B, "6.0.0"), side(Slot::A, "5.3.1"));
    keep(&t, &[Record { from: from.clone(), to: to.clone(), ..now.clone() }]);
    let first = first_line(&t);
    let day = now.time[8..10].trim_start_matches('0').to_owned();
    assert!(first.starts_with(&format!("rolled back from 6.0.0 on {day} ")), "{first}");
    assert!(!first.contains(&now.time[..4]), "{first}");

    let t = device();
    let reset = at("1970-01-01T00:01:00Z", Record { from, to, ..Record::new("t2", Event::Altboot) });
    keep(&t, &[installed(), reset]);
    let fell = "it did not reach its health checks, and the bootloader fell back";
    assert_eq!(
        first_line(&t),
        format!("rolled back from 6.0.0 on 1 Jan 1970 (the device's clock was wrong): {fell}")
    );
    assert_eq!(
        copal(&t, &["--history"]),
        format!(
            "TIME (UTC)         EVENT        RELEASE                 DETAILS
21 Nov 2025 16:00  installed    6.0.0 (B)               from registry2.balena-cloud.com/v2/0123@sha256:89ab
1 Jan 1970 00:01   rolled back  6.0.0 (B) to 5.3.1 (A)  the device's clock was wrong; {fell}
"
        )
    );
}

/// A release that is installed again and again, and never stays.
#[test]
fn rollbacks_from_one_release_are_counted() {
    let t = device();
    let other = Record { from: side(Slot::B, "5.9.0"), ..rolled_back() };
    // One that failed has left the release running.
    let failed = Record { event: Event::RollbackFailed, ..rolled_back() };
    keep(&t, &[rolled_back(), other, failed, rolled_back(), small(1), rolled_back()]);
    assert_eq!(json(&t, &[])["rollbacks"], 3);
    assert!(copal(&t, &[]).contains("         3 rollbacks from this release are known\n"));
}
