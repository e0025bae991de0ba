//! What the program says is words, not Rust: no message shows a value as its source writes it.

use std::collections::BTreeSet;

use crate::architecture::{sources, walk};

/// A text in quotes, with its control characters escaped.
const QUOTED: &[&str] = &[
    "boot_state: text",
    "device_tree::new_release: name",
    "device_tree::pins: self",
    "doctor::device_tree: name",
    "engine: api",
    "engine::archive: name",
    "engine::archive::manifest: name",
    "engine::archive::manifest: path",
    "engine::archive::manifest: self",
    "engine::credentials: helper",
    "engine::hostapp: id",
    "engine::reference: text",
    "rollback::check_version: text",
    "update::mounted_root: printed",
];

/// A time, as `10s`.
const TIMES: &[&str] = &["daemon::service: BUS_ANSWER_LIMIT", "sys::systemd: limit"];

/// The log writes what it is given; a crash point is for tests.
const OTHERS: &[&str] = &["sys::crash_point: self", "sys::log::text: value"];

/// The values that messages of `tokens` show in the form of `Debug`, tests and lines for debugging left out.
fn shown(module: &[String], tokens: &[String]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(module, tokens, |here, i, token| {
        let debugging = tokens[..i].ends_with(&["debug", "!", "("].map(str::to_owned));
        if debugging || !token.contains("?}") || here.iter().any(|m| m == "tests") {
            return;
        }
        for form in token.split('{').filter_map(|part| part.split_once('}')).map(|(form, _)| form) {
            if let Some((value, _)) = form.split_once(':').filter(|_| form.ends_with('?')) {
                // A value after the text stands for itself.
                let value =
                    if value.is_empty() { tokens.get(i + 2).map_or("", String::as_str) } else { value };
                found.insert(format!("{}: {value}", here.join("::")));
            }
        }
    });
    found
}

#[test]
fn no_message_shows_a_value_of_the_source() {
    let found: BTreeSet<String> = sources().iter().flat_map(|s| shown(&s.module, &s.tokens)).collect();
    let allowed: BTreeSet<String> = [QUOTED, TIMES, OTHERS].concat().into_iter().map(str::to_owned).collect();
    let (new, gone): (Vec<_>, Vec<_>) =
        (found.difference(&allowed).collect(), allowed.difference(&found).collect());
    assert!(new.is_empty(), "write these in words, or, if each is a text in quotes, list it: {new:#?}");
    assert!(gone.is_empty(), "no longer shown: {gone:#?}");
}

#[test]
fn a_value_of_the_source_would_be_noticed() {
    let of = |text: &str| {
        let tokens = crate::architecture::tokens(text);
        shown(&["m".to_owned()], &tokens).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(of("fn f() { write!(f, \"{x:?} {} {:?}\", y.z, 1) }"), ["m: x", "m: y"]);
    assert_eq!(of("fn f() { warn!(\"{x:#?}\") } mod tests { fn f() { panic!(\"{y:?}\") } }"), ["m: x"]);
    assert!(of("fn f() { tracing::debug!(\"{x:?}\") }").is_empty());
}
