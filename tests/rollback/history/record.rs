//! A record and its line.

use copal::error::{Code, Error};
use copal::slot::Slot;
use copal::state::history::{Carried, Check, CheckResult, Event, Hook, LINE_LIMIT, Record, Side, Why};
use proptest::prelude::*;
use serde_json::json;

use super::support::{rollback, small};
use crate::kit::needs::{needs, tools};
use crate::kit::schema::complaints_by;

fn word() -> impl Strategy<Value = String> {
    "[ -~äß€\u{1F600}]{0,30}"
}

fn side() -> impl Strategy<Value = Option<Side>> {
    prop::option::of(
        (any::<bool>(), prop::option::of(word()))
            .prop_map(|(b, version)| Side { slot: if b { Slot::A } else { Slot::B }, version }),
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop::sample::select(vec![
        Event::Installed,
        Event::UpdateFailed,
        Event::Committed,
        Event::RolledBack,
        Event::Altboot,
        Event::RollbackFailed,
    ])
}

fn check() -> impl Strategy<Value = Check> {
    let results = vec![CheckResult::Passed, CheckResult::Failed, CheckResult::Unknown];
    (word(), any::<bool>(), prop::sample::select(results), word(), 0_u32..1_000_000).prop_map(
        |(name, required, result, reason, n)| Check {
            name,
            required,
            result,
            reason,
            seconds: f64::from(n) / 8.0,
        },
    )
}

fn hook() -> impl Strategy<Value = Hook> {
    (word(), any::<Option<i32>>()).prop_map(|(name, status)| Hook { name, status })
}

fn carried() -> impl Strategy<Value = Carried> {
    (word(), any::<u64>()).prop_map(|(name, size)| Carried {
        name,
        size,
        sha256: "0f".repeat(32),
        origin: "keep".into(),
    })
}

/// With everything that a record may have.
fn full(n: usize) -> Record {
    let (name, sha256, origin) = ("own.dtb".to_owned(), "0f".repeat(32), "keep".to_owned());
    Record { carried: vec![Carried { name, size: 7, sha256, origin }], ..rollback(n) }
}

/// With every text that an error may have.
fn error(code: Code, text: &str, causes: &[String]) -> Error {
    let value = json!({
        "code": code.as_str(), "object": text, "hint": text, "effect": "refused",
        "summary": text, "causes": causes, "notes": causes,
    });
    serde_json::from_value(value).unwrap()
}

fn any_error() -> impl Strategy<Value = Error> {
    let parts = (prop::sample::select(Code::ALL), word(), prop::collection::vec(word(), 0..5));
    parts.prop_map(|(code, text, causes)| error(code, &text, &causes))
}

fn why() -> impl Strategy<Value = Option<Why>> {
    prop::option::of(prop::sample::select(vec![Why::Checks, Why::Requested, Why::TooOld, Why::Unknown]))
}

prop_compose! {
    fn record()(
        why in why(),
        head in (word(), word(), event(), prop::option::of(word()), side(), side(), prop::option::of(word())),
        numbers in any::<[u32; 3]>(),
        checks in prop::collection::vec(check(), 0..20),
        hooks in prop::collection::vec(hook(), 0..20),
        carried in prop::collection::vec(carried(), 0..20),
        error in prop::option::of(any_error()),
        journal in prop::collection::vec(word(), 0..50),
    ) -> Record {
        let (transaction, time, event, image, from, to, phase) = head;
        let [bootcount, resets, attempts] = numbers;
        Record { time, why, image, from, to, phase, bootcount, resets, attempts, checks, hooks, carried, error, journal, ..Record::new(transaction, event) }
    }
}

fn anything() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..1500).prop_map(|c| c.into_iter().collect())
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(record in record()) {
        let line = record.line();
        prop_assert_eq!(line.matches('\n').count(), 1);
        prop_assert!(line.ends_with('\n'));
        prop_assert_eq!(Record::of_line(line.as_bytes()), Some(record));
    }

    /// Whatever somebody puts into a record: one line within the limit, without control characters, that can be read.
    #[test]
    fn no_text_breaks_a_line(
        text in anything(),
        journal in prop::collection::vec(anything(), 0..80),
        many in 0_usize..300,
    ) {
        let check = Check { name: text.clone(), required: true, result: CheckResult::Failed, reason: text.clone(), seconds: f64::NAN };
        let record = Record {
            image: Some(text.clone()),
            from: Some(Side { slot: Slot::A, version: Some(text.clone()) }),
            phase: Some(text.clone()),
            checks: vec![check; many],
            hooks: vec![Hook { name: text.clone(), status: None }; many],
            carried: vec![Carried { name: text.clone(), size: u64::MAX, sha256: "0f".repeat(32), origin: "keep".into() }; many],
            error: Some(error(Code::Io, &text, &vec![text.clone(); many.min(8)])),
            journal,
            ..Record::new(text, Event::RolledBack)
        };
        let line = record.line();
        prop_assert!(line.len() <= LINE_LIMIT, "{}", line.len());
        prop_assert!(line.trim_end_matches('\n').chars().all(|c| !c.is_control()));
        let read = Record::of_line(line.as_bytes()).unwrap();
        prop_assert!(read.journal.iter().all(|l| l.chars().all(|c| !c.is_control())));
        prop_assert_eq!(read.checks.is_empty(), many == 0);
    }

    #[test]
    fn damaged_lines_are_no_records_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0_usize..4000) {
        prop_assert_eq!(Record::of_line(&bytes), None);
        let line = rollback(0).line();
        // Every part of a line is damaged.
        let cut = at.min(line.len() - 2);
        prop_assert_eq!(Record::of_line(&line.as_bytes()[..cut]), None);
    }
}

#[test]
fn the_newest_lines_of_the_journal_are_kept() {
    let record =
        Record { journal: (0..2000).map(|i| format!("{i} {}", "x".repeat(390))).collect(), ..rollback(0) };
    let read = Record::of_line(record.line().as_bytes()).unwrap();
    assert!(read.journal.len() > 80, "{}", read.journal.len());
    assert_eq!(read.journal.last(), record.journal.last());
    assert_eq!(read.journal[..], record.journal[2000 - read.journal.len()..]);
    // An ordinary rollback with its 200 lines is kept whole.
    assert_eq!(Record::of_line(rollback(0).line().as_bytes()), Some(rollback(0)));
}

#[test]
fn what_went_well_is_left_out_first() {
    let check = |i: usize, result| Check {
        name: format!("{i}"),
        required: true,
        result,
        reason: String::new(),
        seconds: 0.0,
    };
    let mut checks: Vec<Check> = (0..100).map(|i| check(i, CheckResult::Passed)).collect();
    checks[7].result = CheckResult::Failed;
    checks[50].result = CheckResult::Unknown;
    let read = Record::of_line(Record { checks, ..small(0) }.line().as_bytes()).unwrap();
    let names: Vec<&str> = read.checks.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names.len(), 40);
    assert!(names.contains(&"7") && names.contains(&"50"), "{names:?}");
    let checks = (0..100).map(|i| check(i, CheckResult::Failed)).collect();
    let read = Record::of_line(Record { checks, ..small(0) }.line().as_bytes()).unwrap();
    assert_eq!((read.checks.len(), read.checks[0].name.as_str()), (40, "60"));
}

/// The record of a trial is written by the new release, and read by the old one.
#[test]
fn records_of_later_releases_are_read_as_far_as_they_are_known() {
    let line = r#"{"version":7,"transaction":"t","time":"now","event":"exploded","why":"whim","more":{"a":[1]},"checks":[{"name":"c","required":true,"result":"maybe","colour":"red"}],"from":{"slot":"B","size":3}}"#;
    let read = Record::of_line(line.as_bytes()).unwrap();
    assert_eq!((read.version, read.event, read.transaction.as_str()), (7, Event::Unknown, "t"));
    assert_eq!(read.checks[0].result, CheckResult::Unknown);
    assert_eq!(read.why, Some(Why::Unknown));
    assert_eq!(read.from, Some(Side { slot: Slot::B, version: None }));
    for damaged in [r#"{"version":1}"#, r#"{"transaction":"t","time":"now"}"#, "[]", "null", "{}", ""] {
        assert_eq!(Record::of_line(damaged.as_bytes()), None, "{damaged}");
    }
}

#[test]
fn the_schema_takes_what_is_written() {
    needs!(tools);
    for record in [full(1), small(1)] {
        let record = Record { time: Record::new("t", Event::Installed).time, ..record };
        let line: serde_json::Value = serde_json::from_str(&record.line()).unwrap();
        assert_eq!(complaints_by("history.schema.json", &line), "");
    }
    for why in [None, Some(Why::Checks), Some(Why::Requested), Some(Why::TooOld)] {
        let line: serde_json::Value = serde_json::from_str(&Record { why, ..rollback(1) }.line()).unwrap();
        assert_eq!(complaints_by("history.schema.json", &line), "", "{why:?}");
    }
    let mut wrong: serde_json::Value = serde_json::from_str(&rollback(1).line()).unwrap();
    wrong["event"] = "exploded".into();
    assert!(complaints_by("history.schema.json", &wrong).contains("event"));
}

/// Every field of a record is explained, and nothing else.
#[test]
fn the_documentation_has_every_field_and_every_event() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/history.md")).unwrap();
    let documented: std::collections::BTreeSet<String> = text
        .lines()
        .filter_map(|l| Some(l.strip_prefix("| `")?.split('`').next().unwrap().to_owned()))
        .collect();
    let line: serde_json::Value = serde_json::from_str(&full(1).line()).unwrap();
    let mut used: std::collections::BTreeSet<String> = std::collections::BTreeSet::new();
    for object in
        [&line, &line["from"], &line["checks"][0], &line["hooks"][0], &line["carried"][0], &line["error"]]
    {
        used.extend(object.as_object().unwrap().keys().cloned());
    }
    for event in [
        Event::Installed,
        Event::UpdateFailed,
        Event::Committed,
        Event::RolledBack,
        Event::Altboot,
        Event::RollbackFailed,
    ] {
        assert_eq!(serde_json::to_value(event).unwrap(), event.as_str());
        used.insert(event.as_str().to_owned());
    }
    assert_eq!(documented, used);
}
