//! The order of the modules: who may use whom, where `unsafe` may be, how long a file may be.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Top-level modules from top to bottom; those of one line stand side by side, and may use each other in one direction.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["names"],
    &["cli"],
    &["doctor", "daemon", "job_client"],
    &["status", "rollback"],
    &["install", "update"],
    &["hooks"],
    &["boot_files"],
    &["flash", "engine", "state", "unlock"],
    &["boot_state", "bootloader", "device_tree", "image", "slot"],
    &["disk", "progress"],
    &["job", "luks"],
    &["measurements", "tpm", "uefi"],
    &["config", "signature", "version"],
    &["sys"],
    &["error"],
];

/// Uses nothing of ours, not even what is below it.
const ALONE: &[&str] = &["sys", "error"];

const LONGEST: usize = 500;

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|l| l.contains(&module))
}

/// A source file, with its module path below the crate.
pub(crate) struct Source {
    path: PathBuf,
    pub(crate) module: Vec<String>,
    text: String,
    pub(crate) tokens: Vec<String>,
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

pub(crate) fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    rust_files(&root)
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut module: Vec<String> = path
                .strip_prefix(&root)
                .unwrap()
                .with_extension("")
                .iter()
                .map(|c| c.to_str().unwrap().to_owned())
                .collect();
            if matches!(module.last().map(String::as_str), Some("mod" | "lib")) {
                module.pop();
            }
            Source { tokens: tokens(&text), path, module, text }
        })
        .collect()
}

/// The words and signs of `text`, groups included, `::` as one. Comments are gone, and a literal is one token.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    flatten(text.parse().unwrap(), &mut out);
    out
}

fn flatten(stream: TokenStream, out: &mut Vec<String>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                out.push(open.to_owned());
                flatten(group.stream(), out);
                out.push(close.to_owned());
            }
            TokenTree::Punct(sign) if sign.as_char() == ':' && out.last().is_some_and(|last| last == ":") => {
                *out.last_mut().unwrap() = "::".to_owned();
            }
            other => out.push(other.to_string()),
        }
    }
}

/// Walks the tokens with the module each one stands in (inline `mod name { … }` included).
pub(crate) fn walk(module: &[String], tokens: &[String], mut see: impl FnMut(&[String], usize, &str)) {
    let mut here = module.to_vec();
    let mut inline = Vec::new();
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => {
                depth += 1;
                if i >= 2 && tokens[i - 2] == "mod" {
                    here.push(tokens[i - 1].clone());
                    inline.push(depth);
                }
            }
            "}" => {
                if inline.last() == Some(&depth) {
                    inline.pop();
                    here.pop();
                }
                depth -= 1;
            }
            _ => {}
        }
        see(&here, i, token);
    }
}

/// The paths that `tokens` name from the crate on: through `crate::`, `copal::` or `super::`. `true`: a test names it.
fn paths(module: &[String], tokens: &[String]) -> BTreeSet<(bool, Vec<String>)> {
    let mut found = BTreeSet::new();
    let is = |at: usize, what: &str| tokens.get(at).is_some_and(|t| t == what);
    walk(module, tokens, |here, i, token| {
        let follows = is(i + 1, "::");
        let preceding = &tokens[..i];
        let before = preceding.last().map_or("", String::as_str);
        let mut base = here.to_vec();
        let mut next = i + 2;
        match token {
            // `pub(in crate::…)` uses nothing.
            "crate" if follows && !preceding.ends_with(&["pub", "(", "in"].map(str::to_owned)) => {
                base.clear();
            }
            // Only `main.rs` and macros reach the library by its name.
            "copal" if follows && before != "::" => base.clear(),
            "super" if follows && before != "::" => {
                base.pop();
                while is(next, "super") {
                    base.pop();
                    next += 2;
                }
            }
            _ => return,
        }
        let mut all = Vec::new();
        expand(tokens, next, base, &mut all);
        let in_test = here.iter().any(|m| m == "tests");
        found.extend(all.into_iter().map(|path| (in_test, path)));
    });
    found
}

/// The paths that begin with `path` and go on at `at`, where a group may be; returns where they end.
fn expand(tokens: &[String], mut at: usize, mut path: Vec<String>, found: &mut Vec<Vec<String>>) -> usize {
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while let Some(token) = tokens.get(at) {
                    match token.as_str() {
                        "}" => return at + 1,
                        "," => at += 1,
                        // A new name.
                        "as" => at += 2,
                        _ => at = expand(tokens, at, path.clone(), found),
                    }
                }
                return at;
            }
            Some(word) => path.push(word.to_owned()),
            None => return at,
        }
        at += 1;
        if tokens.get(at).is_none_or(|t| t != "::") {
            found.push(path);
            return at;
        }
        at += 1;
    }
}

/// The top-level modules that `tokens` use.
fn uses(module: &[String], tokens: &[String]) -> BTreeSet<String> {
    paths(module, tokens).into_iter().filter_map(|(_, path)| path.into_iter().next()).collect()
}

/// What is wrong with `from` using `to`, if anything.
fn objection(from: &str, to: &str) -> Option<String> {
    let (Some(f), Some(t)) = (rank(from), rank(to)) else { return None };
    if from == to {
        None
    } else if ALONE.contains(&from) {
        Some(format!("{from} uses {to}, and must use nothing of ours"))
    } else if t < f {
        Some(format!("{from} uses {to}, which is above it"))
    } else {
        None
    }
}

fn edges(sources: &[Source]) -> BTreeSet<(String, String, PathBuf)> {
    let mut out = BTreeSet::new();
    for s in sources.iter().filter(|s| !s.module.is_empty()) {
        for to in uses(&s.module, &s.tokens) {
            out.insert((s.module[0].clone(), to, s.path.clone()));
        }
    }
    out
}

#[test]
fn nothing_uses_what_is_above_it() {
    let sources = sources();
    let edges = edges(&sources);
    let mut wrong: Vec<String> = edges
        .iter()
        .filter_map(|(from, to, path)| Some(format!("{}: {}", path.display(), objection(from, to)?)))
        .collect();
    for (from, to, path) in &edges {
        let back = edges.iter().any(|(f, t, _)| f == to && t == from);
        if from != to && rank(from) == rank(to) && rank(from).is_some() && back {
            wrong.push(format!("{}: {from} and {to} use each other", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The scan does see the edges that are there.
    for (from, to) in [("main", "names"), ("names", "cli"), ("cli", "install"), ("install", "sys")] {
        assert!(edges.iter().any(|(f, t, _)| f == from && t == to), "{from} -> {to} not seen");
    }
}

/// What each module uses by a path from the crate or from `super`, without its tests. The path of a parent to its own child has neither:
/// a module and the files in it may use each other.
fn module_edges(sources: &[Source]) -> BTreeSet<(&[String], &[String])> {
    let known: BTreeSet<&[String]> = sources.iter().map(|s| s.module.as_slice()).collect();
    let mut edges = BTreeSet::new();
    for s in sources {
        for (_, path) in paths(&s.module, &s.tokens).into_iter().filter(|(in_test, _)| !in_test) {
            // The longest beginning of the path that is a module.
            let to = (1..=path.len()).rev().find_map(|n| known.get(&path[..n]));
            edges.extend(to.filter(|to| **to != s.module).map(|to| (s.module.as_slice(), *to)));
        }
    }
    edges
}

/// Edges of circles, and of ways between two circles.
fn circles<'a>(mut edges: BTreeSet<(&'a [String], &'a [String])>) -> BTreeSet<(&'a [String], &'a [String])> {
    loop {
        let before = edges.len();
        let (from, to): (BTreeSet<_>, BTreeSet<_>) = edges.iter().copied().unzip();
        edges.retain(|(f, t)| to.contains(f) && from.contains(t));
        if edges.len() == before {
            return edges;
        }
    }
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let sources = sources();
    let edges = module_edges(&sources);
    assert!(edges.len() > 500, "the scan sees {} uses", edges.len());
    let show = |(from, to): (&[String], &[String])| format!("{} uses {}", from.join("::"), to.join("::"));
    let found: Vec<String> = circles(edges).into_iter().map(show).collect();
    assert!(found.is_empty(), "{found:#?}");

    let modules = ["a", "b", "c", "d"].map(|m| vec![m.to_owned()]);
    let [a, b, c, d] = modules.each_ref().map(Vec::as_slice);
    let circle = [(a, b), (b, c), (c, a)];
    assert_eq!(circles(circle.into_iter().chain([(c, d)]).collect()), BTreeSet::from(circle));
    assert!(circles(BTreeSet::from([(a, b), (b, c), (a, c)])).is_empty());
}

#[test]
fn every_module_has_its_place() {
    for s in sources().iter().filter(|s| !s.module.is_empty()) {
        assert!(rank(&s.module[0]).is_some(), "{}: put `{}` into LAYERS", s.path.display(), s.module[0]);
    }
}

#[test]
fn an_upward_edge_would_be_found() {
    let module = |m: &str| m.split("::").map(str::to_owned).collect::<Vec<_>>();
    let seen = |m: &str, code: &str| uses(&module(m), &tokens(code)).into_iter().collect::<Vec<_>>();

    assert_eq!(seen("sys::log", "use crate::error::Result;"), ["error"]);
    assert_eq!(
        seen("config", "use crate::{error::{Code, Error}, cli, sys::log::{self}};"),
        ["cli", "error", "sys"]
    );
    assert_eq!(seen("config::paths", "use super::super::flash::plan;"), ["flash"]);
    assert_eq!(seen("config::paths", "use super::{pattern};"), ["config"]);
    assert_eq!(seen("config", "mod tests { use super::*; use super::super::cli; }"), ["cli", "config"]);
    assert_eq!(seen("disk", "fn f() { let x: &'static str = \"'\"; crate::flash::g::<'_'>(x) }"), ["flash"]);
    assert_eq!(seen("main", "fn main() { copal::names::run() }"), ["names"]);
    assert_eq!(seen("config", "fn f() { for x in crate::cli::verbs() {} }"), ["cli"]);
    assert_eq!(seen("config::paths", "pub(in crate::config) fn f() {}"), Vec::<String>::new());
    // Words that are no code.
    let none = "// use crate::cli;\n/* crate::cli /* */ crate::cli */ const S: &str = r#\"\"crate::cli\"#; const T: &[u8] = b\"\\\"crate::cli\";";
    assert_eq!(seen("sys", none), Vec::<String>::new());

    assert!(objection("sys", "error").is_some());
    assert!(objection("error", "sys").is_some());
    assert!(objection("config", "flash").is_some());
    assert!(objection("flash", "cli").is_some());
    assert!(objection("cli", "names").is_some());
    assert!(objection("flash", "config").is_none());
    assert!(objection("config", "error").is_none());
    assert!(objection("disk", "config").is_none());
}

/// A glob over the crate would hide which modules are meant.
#[test]
fn no_module_imports_the_crate_as_a_whole() {
    for source in sources() {
        let code = source.tokens.concat();
        assert!(!code.contains("crate::*") && !code.contains("crate::{*"), "{}", source.path.display());
    }
}

#[test]
fn unsafe_is_in_sys_only() {
    let mut in_sys = 0;
    for s in sources() {
        let found = s.tokens.iter().filter(|t| matches!(t.as_str(), "unsafe" | "unsafe_code")).count();
        if s.module.first().is_some_and(|m| m == "sys") {
            in_sys += found;
        } else {
            assert_eq!(found, 0, "{}: unsafe belongs into src/sys", s.path.display());
        }
    }
    assert!(in_sys > 0, "the scan sees none at all");
}

/// The names of public functions, constants and statics in `tokens`. Types are left out: a signature that has one in it needs it to be as
/// public as itself.
fn public_names(tokens: &[String]) -> Vec<&str> {
    let mut found = Vec::new();
    let is = |at: usize, words: &[&str]| tokens.get(at).is_some_and(|t| words.contains(&t.as_str()));
    for (i, _) in tokens.iter().enumerate().filter(|(_, t)| *t == "pub") {
        let mut at = i + 1;
        // `pub const NAME`, `pub const fn name`, `pub async unsafe fn name`; `pub(crate)` and fields are none.
        while is(at, &["async", "unsafe", "const"]) && is(at + 1, &["async", "unsafe", "fn"]) {
            at += 1;
        }
        if is(at, &["fn", "const", "static"]) {
            found.extend(tokens.get(at + 1).map(String::as_str));
        }
    }
    found
}

/// An ignored test is one that nothing runs. What other tests start is done by the test itself (`tests/kit/alone.rs`).
#[test]
fn no_test_is_ignored() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["src", "tests"].map(|folder| rust_files(&root.join(folder))).concat();
    let is_ignored = |path: &PathBuf| {
        let tokens = tokens(&std::fs::read_to_string(path).unwrap());
        tokens.windows(3).any(|w| w[0] == "#" && w[1] == "[" && w[2] == "ignore")
    };
    let found: Vec<_> = files.iter().filter(|path| is_ignored(path)).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn what_is_public_is_used_by_another_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources();
    let mut words: Vec<BTreeSet<String>> =
        sources.iter().map(|s| s.tokens.iter().cloned().collect()).collect();
    for folder in ["tests", "examples", "fuzz/fuzz_targets"] {
        for path in rust_files(&root.join(folder)) {
            words.push(tokens(&std::fs::read_to_string(path).unwrap()).into_iter().collect());
        }
    }
    // No test program uses all of the kit, so the compiler does not report what none uses.
    let kit = rust_files(&root.join("tests/kit")).into_iter().map(|path| {
        let tokens = tokens(&std::fs::read_to_string(&path).unwrap());
        (path, tokens)
    });
    let (mut looked_at, mut unused) = (0, Vec::new());
    for (path, tokens) in sources.iter().map(|s| (s.path.clone(), s.tokens.clone())).chain(kit) {
        for name in public_names(&tokens) {
            looked_at += 1;
            if words.iter().filter(|w| w.contains(name)).count() < 2 {
                unused.push(format!("{}: no other file uses `{name}`: make it private", path.display()));
            }
        }
    }
    assert!(unused.is_empty(), "{unused:#?}");
    assert!(looked_at > 100);
    assert_eq!(
        public_names(&tokens(
            "pub fn a() {} pub const B: u8 = 0; pub async fn c() {} pub(crate) fn d() {} struct S { pub fn_: u8 }"
        )),
        ["a", "B", "c"]
    );
}

/// They panic when the reader of the output has closed it, which with `panic = "abort"` ends a flash half way.
#[test]
fn nothing_prints_by_macro() {
    let mut looked_at = 0;
    for s in sources() {
        walk(&s.module, &s.tokens, |here, i, token| {
            looked_at += 1;
            let prints = matches!(token, "print" | "println" | "eprint" | "eprintln")
                && s.tokens.get(i + 1).is_some_and(|t| t == "!");
            let test = here.iter().any(|m| m == "tests");
            assert!(!prints || test, "{}: {token}! panics on a closed pipe", s.path.display());
        });
    }
    assert!(looked_at > 1000);
}

#[test]
fn files_are_short() {
    for s in sources() {
        let lines = s.text.lines().count();
        assert!(lines <= LONGEST, "{} has {lines} lines, more than {LONGEST}", s.path.display());
    }
}
