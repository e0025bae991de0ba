//! What the page about compatibility calls a proof is one, and what it calls the way is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn source(path: &str) -> String {
    fs::read_to_string(at(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A row of the page's tables: its number, how it is met, its proof.
struct Row {
    number: String,
    way: String,
    proof: String,
}

impl Row {
    /// Whether the page says that something of it is missing.
    fn is_open(&self) -> bool {
        self.proof.contains("**Partly:**") || self.proof.contains("**Not proved")
    }
}

fn rows(page: &str) -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{line}");
        Row { number: cells[0].to_owned(), way: cells[2].to_owned(), proof: cells[3].to_owned() }
    };
    let head = |l: &&str| !l.starts_with("| |") && !l.starts_with("|---");
    // Pull requests that are not merged have no proofs.
    let (merged, _) = page.split_once("\n## Pull requests that are not merged\n").unwrap();
    merged.lines().filter(|l| l.starts_with('|')).filter(head).map(row).collect()
}

/// The words between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether `text` has a test of this name that is run.
fn has_test(text: &str, name: &str) -> bool {
    let Some((before, _)) = text.split_once(&format!("fn {name}(")) else { return false };
    let above = &before[..before.rfind('\n').unwrap_or(0)];
    let attributes: Vec<&str> =
        above.lines().rev().take_while(|l| l.trim_start().starts_with(['#', '/'])).collect();
    attributes.iter().any(|l| l.trim() == "#[test]")
}

/// What is wrong with the proof of a row.
fn faults(row: &Row) -> Vec<String> {
    let (mut faults, mut file, mut text, mut tests) = (Vec::new(), String::new(), String::new(), 0);
    for word in quoted(&row.proof) {
        if !word.contains('/') {
            tests += 1;
            if !has_test(&text, word) {
                faults.push(format!("{}: no test `{word}` in `{file}`", row.number));
            }
            continue;
        }
        if !file.is_empty() && tests == 0 && !file.ends_with(".scenario") {
            faults.push(format!("{}: no test of `{file}` is named", row.number));
        }
        (file, tests) = (word.to_owned(), 0);
        text = fs::read_to_string(at(word)).unwrap_or_default();
        if text.is_empty() {
            faults.push(format!("{}: no file `{word}`", row.number));
        }
    }
    if file.is_empty() && !row.proof.contains("**Not proved") {
        faults.push(format!("{}: it has neither a proof nor the words that it has none", row.number));
    }
    faults
}

#[test]
fn every_proof_is_a_test_that_is_there() {
    let rows = rows(&source("docs/compatibility.md"));
    assert!(rows.len() > 50, "{}", rows.len());
    let faults: Vec<String> = rows.iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let numbers: BTreeSet<&str> = rows.iter().map(|r| r.number.as_str()).collect();
    assert_eq!(numbers.len(), rows.len(), "a number twice");
    for row in &rows {
        for path in quoted(&row.way).filter(|w| !w.contains(char::is_whitespace)) {
            assert!(at(path).exists(), "{}: no {path}", row.number);
        }
    }
}

#[test]
fn what_is_not_proved_is_summed_up() {
    let page = source("docs/compatibility.md");
    let summary = page.split("wholly, proved:**").nth(1).unwrap().split('.').next().unwrap();
    let named: Vec<&str> = summary.split(',').map(str::trim).collect();
    let open: Vec<String> = rows(&page).into_iter().filter(Row::is_open).map(|r| r.number).collect();
    assert_eq!(named, open);
}

#[test]
fn a_proof_that_is_not_there_would_be_found() {
    let own = "tests/docs/compatibility.rs";
    let fault =
        |proof: &str| faults(&Row { number: "X1".into(), way: String::new(), proof: proof.into() }).len();
    assert_eq!(fault(&format!("`{own}`: `every_proof_is_a_test_that_is_there`")), 0);
    assert_eq!(fault("`tests/none.rs`: `every_proof_is_a_test_that_is_there`"), 2);
    assert_eq!(fault(&format!("`{own}`: `a_test_of_another_name`")), 1);
    assert_eq!(fault(&format!("`{own}`: `has_test`")), 1, "a function that is no test");
    assert_eq!(fault("`qemu/scenarios/none.scenario`"), 1);
    assert_eq!(fault("as everybody knows"), 1);
    assert_eq!(fault("**Not proved:** nobody has tried"), 0);
}

/// Each step of the design book's tables about power cuts has its proof, and the tables of proofs have no other step but one.
#[test]
fn every_step_of_the_design_book_has_its_proof() {
    fn steps(text: &str, cell: usize) -> Vec<(String, String)> {
        let (mut heading, mut steps) = (String::new(), Vec::new());
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("### ") {
                title.clone_into(&mut heading);
            }
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let head = ["step", "change"].contains(&cells.get(cell).copied().unwrap_or_default());
            if line.starts_with("| ") && !head {
                steps.push((heading.clone(), cells[cell].replace('`', "")));
            }
        }
        steps
    }
    let (book, page) = (source("docs/design.md"), source("docs/compatibility.md"));
    let part = book.split("\n## Why a power cut").nth(1).unwrap().split("\n## Threat model").next().unwrap();
    let named = steps(part, 0);
    let part = page.split("\n## Power cuts\n").nth(1).unwrap().split("\n### The model\n").next().unwrap();
    let mut proved = steps(part, 1);
    let calls: usize = part.lines().filter(|l| l.starts_with("| ")).map(|l| quoted(l).count()).sum();
    assert!(named.len() > 35 && calls > 70, "{} steps, {calls} words", named.len());
    let failure = proved.iter().position(|s| s.1.starts_with("a failure in any hook")).unwrap();
    proved.remove(failure);
    assert_eq!(named, proved);
}

/// The values of a key of a unit, in the words of which there may be several.
fn values(unit: &str, key: &str) -> Vec<String> {
    let prefix = format!("{key}=");
    let lines = unit.lines().filter_map(|l| l.strip_prefix(&prefix));
    lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

#[test]
fn the_unit_of_the_flasher_is_the_one_that_others_refer_to() {
    let unit = source("systemd/resin-init-flasher.service");
    for (key, wanted) in [
        ("Requires", "mnt-boot.mount"),
        ("Wants", "resin-device-register.service openvpn.service"),
        ("After", "mnt-boot.mount temp-conf.service"),
        ("Type", "oneshot"),
        ("RemainAfterExit", "yes"),
        ("ExecStart", "/usr/bin/resin-init-flasher"),
        ("NotifyAccess", "main"),
        ("TimeoutStartSec", "infinity"),
        ("WantedBy", "multi-user.target"),
    ] {
        let found = values(&unit, key);
        assert_eq!(found, wanted.split_whitespace().collect::<Vec<_>>(), "{key}");
    }
}
