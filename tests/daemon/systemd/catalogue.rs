//! Events, their catalogue, and their documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use copal::sys::log::events;

use crate::kit::needs::has;

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn catalogue() -> PathBuf {
    top().join("systemd/copal.catalog")
}

/// An entry of the catalogue: header and text.
struct Entry {
    header: BTreeMap<String, String>,
    text: String,
}

impl Entry {
    /// The fields that it quotes.
    fn quotes(&self) -> BTreeSet<String> {
        let all = format!("{}\n{}", self.header["Subject"], self.text);
        all.split('@').skip(1).step_by(2).map(str::to_owned).collect()
    }
}

fn entries() -> BTreeMap<String, Entry> {
    let text = std::fs::read_to_string(catalogue()).unwrap();
    let mut entries = BTreeMap::new();
    for part in text.split("\n-- ").skip(1) {
        let (id, rest) = part.split_once('\n').unwrap();
        let (header, text) = rest.split_once("\n\n").unwrap();
        let header = header
            .lines()
            .map(|l| l.split_once(": ").unwrap_or_else(|| panic!("{l}")))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        assert!(
            entries.insert(id.to_owned(), Entry { header, text: text.to_owned() }).is_none(),
            "{id} twice"
        );
    }
    entries
}

/// Every call that mentions an event, by the event's name.
fn uses() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut folders = vec![top().join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let text: String =
                text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
            for (at, _) in text.match_indices("events::") {
                let name: String =
                    text[at + 8..].chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
                if name.len() > 3 {
                    let begin = text[..at].rfind(['{', ';']).unwrap_or(0);
                    let end = at + text[at..].find(");").unwrap();
                    found.entry(name).or_default().push(text[begin..end].to_owned());
                }
            }
        }
    }
    found
}

#[test]
fn catalogue_and_code_have_the_same_events() {
    let entries = entries();
    let in_code: BTreeSet<&str> = events::ALL.iter().map(|(_, id)| *id).collect();
    assert_eq!(in_code.len(), events::ALL.len(), "an identifier is used twice");
    assert_eq!(entries.keys().map(String::as_str).collect::<BTreeSet<_>>(), in_code);
    for (id, entry) in &entries {
        assert!(
            id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
            "{id}"
        );
        assert!(id != &"0".repeat(32));
        let keys: Vec<&str> = entry.header.keys().map(String::as_str).collect();
        assert_eq!(keys, ["Defined-By", "Subject", "Support"], "{id}");
        assert_eq!(entry.header["Defined-By"], "copal");
        // What happened, and what to do.
        assert!(entry.text.trim().split("\n\n").count() >= 2, "{id}");
        assert!(entry.text.lines().all(|l| l.len() <= 80), "{id}");
    }
}

#[test]
fn every_event_is_logged_with_the_fields_that_its_entry_quotes() {
    let (entries, uses) = (entries(), uses());
    for (name, id) in events::ALL {
        let calls = uses.get(*name).map_or(&[][..], Vec::as_slice);
        assert!(!calls.is_empty(), "{name} is never told");
        for field in entries[*id].quotes() {
            // Added to each failure by the log itself.
            let by_the_log = name.ends_with("_FAILED") && field == "COPAL_ERROR_CODE";
            for call in calls {
                assert!(by_the_log || call.contains(&field), "{name} without {field}: {call}");
            }
        }
    }
}

#[test]
fn every_event_and_every_field_is_documented() {
    let doc = std::fs::read_to_string(top().join("docs/journal.md")).unwrap();
    let row = |first: &str| {
        let start = format!("| `{first}` |");
        doc.lines().find(|l| l.starts_with(&start)).unwrap_or_else(|| panic!("{first}")).to_owned()
    };
    let entries = entries();
    for (name, id) in events::ALL {
        let row = row(name);
        assert!(row.contains(&format!("| `{id}` |")), "{name}");
        for field in entries[*id].quotes() {
            assert!(row.contains(&field), "{name}: {field}");
        }
    }
    let has_id = |l: &&str| l.split('`').nth(3).is_some_and(|id| id.len() == 32);
    let documented = doc.lines().filter(|l| l.starts_with("| `")).filter(has_id).count();
    assert_eq!(documented, events::ALL.len());
    let mut fields: BTreeSet<String> = uses().values().flatten().flat_map(|call| capitals(call)).collect();
    fields.extend(entries.values().flat_map(Entry::quotes));
    assert!(fields.len() >= 5, "{fields:?}");
    for field in fields {
        row(&field);
    }
}

/// Words that begin with `COPAL_`.
fn capitals(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_uppercase() || c == '_'));
    words.filter(|w| w.starts_with("COPAL_")).map(str::to_owned).collect()
}

#[test]
fn systemd_takes_the_catalogue() {
    if !has("journalctl --update-catalog", "journalctl") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for folder in ["usr/lib/systemd/catalog", "var/lib/systemd/catalog"] {
        std::fs::create_dir_all(root.path().join(folder)).unwrap();
    }
    std::fs::copy(catalogue(), root.path().join("usr/lib/systemd/catalog/copal.catalog")).unwrap();
    let journalctl = |args: &[&str]| {
        let out = Command::new("journalctl").arg("--root").arg(root.path()).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    journalctl(&["--update-catalog"]);
    let list = journalctl(&["--list-catalog"]);
    for (name, id) in events::ALL {
        let line = list.lines().find(|l| l.starts_with(id)).unwrap_or_else(|| panic!("{name}: {list}"));
        assert!(line.contains("copal: "), "{line}");
        assert!(journalctl(&["--dump-catalog", id]).contains("Defined-By: copal"), "{name}");
    }
    assert_eq!(list.lines().count(), events::ALL.len());
}
