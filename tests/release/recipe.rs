//! The recipes of the Yocto layer name what is released: its version, its licences, and the crates that it is compiled from.
//!
//! `COPAL_GENERATE=1 cargo test --test release crate` writes the list of crates and the texts of their licences.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::kit::needs::{needs, tools};
use crate::{files, top};

const FOLDER: &str = "recipes/recipes-support/copal";
const CRATES: &str = "recipes/recipes-support/copal/copal-crates.inc";

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A variable's value, where the recipe assigns it on lines of its own; without the backslashes that join them.
fn value<'a>(recipe: &'a str, start: &str) -> Vec<&'a str> {
    let text = recipe.split(start).nth(1).unwrap_or_else(|| panic!("no {start} in the recipe"));
    text.split('"').next().unwrap().split_whitespace().filter(|word| *word != "\\").collect()
}

/// The list of crates in the form that `bitbake -c update_crates` writes; with the licence texts it is all that a build needs.
fn crates() -> String {
    let lock = read("Cargo.lock");
    let (mut uris, mut sums) = (String::new(), String::new());
    for package in lock.split("[[package]]").skip(1) {
        let word = |key: &str| package.split(&format!("\n{key} = \"")).nth(1)?.split('"').next();
        if !word("source").is_some_and(|source| source.contains("crates.io")) {
            continue;
        }
        let (name, version, sum) =
            (word("name").unwrap(), word("version").unwrap(), word("checksum").unwrap());
        writeln!(uris, "    crate://crates.io/{name}/{version} \\").unwrap();
        writeln!(sums, "SRC_URI[{name}-{version}.sha256sum] = \"{sum}\"").unwrap();
    }
    format!("# Written from Cargo.lock by tests/release/recipe.rs.\nSRC_URI += \"\\\n{uris}\"\n\n{sums}")
}

#[test]
fn the_crates_of_the_source_recipe_are_those_of_cargo_lock() {
    let wanted = crates();
    assert!(wanted.matches("crate://crates.io/").count() > 100, "{wanted}");
    if std::env::var_os("COPAL_GENERATE").is_some() {
        fs::write(top().join(CRATES), &wanted).unwrap();
    }
    assert!(
        read(CRATES) == wanted,
        "{CRATES} is not of this Cargo.lock; see tests/release/recipe.rs how to write it"
    );
}

#[test]
fn both_recipes_have_the_version_of_the_program() {
    let version = env!("CARGO_PKG_VERSION");
    let recipes: Vec<String> = files(FOLDER)
        .iter()
        .map(|file| file.file_name().unwrap().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".bb"))
        .collect();
    assert_eq!(recipes, [format!("copal_{version}+source.bb"), format!("copal_{version}.bb")]);
}

/// The source recipe does not try a Rust that cannot compile the program, and tries each one that can.
#[test]
fn the_source_recipe_needs_the_rust_of_cargo_toml() {
    let recipe = read(&format!("{FOLDER}/copal_{}+source.bb", env!("CARGO_PKG_VERSION")));
    assert_eq!(value(&recipe, "COPAL_RUST = \""), [env!("CARGO_PKG_RUST_VERSION")]);
}

/// What `yocto-check-layer` reads of a layer before it starts bitbake. A text that names another README would not be looked at.
#[test]
fn the_layer_says_who_maintains_it_and_takes_patches() {
    let text = read("recipes/README.md");
    let words = text.to_lowercase();
    assert!(!words.contains("readme") && words.contains("maintainer") && words.contains("patch"), "{text}");
    let address = |word: &str| {
        word.trim_matches(['<', '>', ',', '.'])
            .split_once('@')
            .is_some_and(|(name, host)| !name.is_empty() && host.contains('.'))
    };
    assert!(text.split_whitespace().any(address), "no e-mail address in {text}");
    assert!(read("recipes/SECURITY.md").contains("vulnerability"));
    assert!(
        read("recipes/conf/layer.conf")
            .contains("LAYERSERIES_COMPAT_copal = \"kirkstone scarthgap wrynose\"")
    );
}

/// Two versions of Rust, in their order; `1.89` is `1.89.0`.
fn rust(version: &str) -> Vec<u32> {
    let mut numbers: Vec<u32> = version.split('.').map(|n| n.parse().unwrap()).collect();
    numbers.resize(3, 0);
    numbers
}

fn cargo(words: &[&str]) -> String {
    let out = Command::new(env!("CARGO")).args(words).current_dir(top()).output().unwrap();
    assert!(out.status.success(), "cargo {words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// What a crate says of itself is not all that it needs: `./dev prove older-rust` compiles the program with that Rust.
#[test]
fn no_crate_of_the_program_asks_for_a_newer_rust_than_the_program_does() {
    let tree = cargo(&["tree", "--locked", "--edges", "normal,build", "--target", "all", "--prefix", "none"]);
    let used: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, rest)| (name, rest.split(' ').next().unwrap().trim_start_matches('v')))
        .collect();
    assert!(used.len() > 100, "{tree}");
    let known: Value =
        serde_json::from_str(&cargo(&["metadata", "--locked", "--format-version", "1"])).unwrap();
    let ours = rust(env!("CARGO_PKG_RUST_VERSION"));
    let mut asked = 0;
    for package in known["packages"].as_array().unwrap() {
        let (name, version) = (package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
        if let (true, Some(needed)) = (used.contains(&(name, version)), package["rust_version"].as_str()) {
            asked += 1;
            assert!(rust(needed) <= ours, "{name} {version} needs Rust {needed}");
        }
    }
    assert!(asked > 50, "{asked} crates name a Rust");
}

/// The checks of older Rusts are of the one that Cargo.toml asks for, and of that of wrynose, which is between that and the pinned one.
#[test]
fn the_rust_of_wrynose_is_one_that_can_compile_the_program() {
    let line = |path: &str, start: &str| {
        let text = read(path);
        text.lines()
            .find_map(|l| l.strip_prefix(start))
            .unwrap_or_else(|| panic!("{path}: no {start}"))
            .trim_matches('"')
            .to_owned()
    };
    let wrynose = rust(&line("scripts/lib.sh", "WRYNOSE_RUST="));
    assert!(rust(env!("CARGO_PKG_RUST_VERSION")) <= wrynose);
    assert!(wrynose <= rust(&line("rust-toolchain.toml", "channel = ")));
}

/// Whether a licence expression can be chosen to be under these alone. Those of crates are of one level.
fn may_be_under(expression: &str, licences: &BTreeSet<&str>) -> bool {
    expression
        .split(" AND ")
        .all(|part| part.trim_matches(['(', ')']).split(" OR ").any(|licence| licences.contains(licence)))
}

#[test]
fn a_licence_expression_is_read() {
    let these = BTreeSet::from(["MIT", "Zlib"]);
    assert!(may_be_under("(MIT OR Apache-2.0) AND Zlib", &these) && may_be_under("Unlicense OR MIT", &these));
    assert!(!may_be_under("(MIT OR Apache-2.0) AND Unicode-3.0", &these));
    assert!(!may_be_under("Apache-2.0 WITH LLVM-exception", &these));
}

fn md5(path: &Path) -> String {
    let said = Command::new("md5sum").arg(path).output().unwrap();
    String::from_utf8(said.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

/// MIT asks for each crate's own notice. With COPAL_GENERATE the file is written; its checksum in the recipe is changed manually.
#[test]
fn the_file_of_licence_texts_has_each_text_of_each_crate() {
    needs!(tools);
    const TEXTS: &str = "scripts/licenses/TEXTS";
    let library = read("scripts/lib.sh");
    let targets = value(&library, "\nTARGETS='").join(" ").split('\'').next().unwrap().to_owned();
    let python = "import sys, pathlib; sys.path.insert(0, 'scripts'); import third_party; \
        sys.stdout.buffer.write(third_party.all_texts(pathlib.Path.cwd(), sys.argv[1:]))";
    let made = Command::new("python3")
        .args(["-B", "-c", python])
        .args(targets.split(' '))
        .current_dir(top())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    if std::env::var_os("COPAL_GENERATE").is_some() {
        fs::write(top().join(TEXTS), &made.stdout).unwrap();
    }
    assert!(
        read(TEXTS).as_bytes() == made.stdout,
        "{TEXTS} is not of these crates; COPAL_GENERATE=1 writes it"
    );
    let sum = md5(&top().join(TEXTS));
    let recipe = read(&format!("{FOLDER}/copal.inc"));
    assert!(recipe.contains(&format!("/TEXTS;md5={sum} ")), "LIC_FILES_CHKSUM of TEXTS is {sum}");
    assert!(read(TEXTS).matches("Copyright (c)").count() > 30);
}

/// The recipe is copal's: not meta-balena's page, and not its tracker.
#[test]
fn the_recipe_names_copal_s_own_places() {
    let recipe = read(&format!("{FOLDER}/copal.inc"));
    let readme = read("recipes/README.md");
    let host = readme.split_once("<copal@").unwrap().1.split('>').next().unwrap();
    for name in ["HOMEPAGE", "BUGTRACKER"] {
        let place = value(&recipe, &format!("\n{name} = \""))[0];
        assert!(place.starts_with(&format!("https://{host}")), "{name} is {place}");
    }
}

/// `folder` is an unpacked archive. Its licences are those of the recipe, none more and none less, each with a text in the archive.
pub(crate) fn licences_are_those_of_the_recipe(folder: &Path) {
    let recipe = read(&format!("{FOLDER}/copal.inc"));
    let named: BTreeSet<&str> =
        value(&recipe, "\nLICENSE = \"").into_iter().filter(|word| *word != "&").collect();
    let bill: Value = serde_json::from_slice(&fs::read(folder.join("sbom.cdx.json")).unwrap()).unwrap();
    let own = [bill["metadata"]["component"].clone()];
    let parts: Vec<&str> = own
        .iter()
        .chain(bill["components"].as_array().unwrap())
        .map(|part| part["licenses"][0]["expression"].as_str().unwrap())
        .collect();
    let all_under = |licences: &BTreeSet<&str>| parts.iter().all(|part| may_be_under(part, licences));
    assert!(all_under(&named), "LICENSE is {named:?}, and there is one of {parts:?} under none of these");
    for licence in &named {
        let others = named.iter().copied().filter(|other| other != licence).collect();
        assert!(!all_under(&others), "LICENSE names {licence}, and nothing needs it");
    }

    for text in value(&recipe, "\nLIC_FILES_CHKSUM = \"") {
        let (path, sum) = text.strip_prefix("file://").unwrap().split_once(";md5=").unwrap();
        assert_eq!(
            md5(&folder.join(path.replace("${COPAL_LICENSES}", "licenses"))),
            sum,
            "LIC_FILES_CHKSUM of {path}"
        );
    }
    // Each owner of a text in the archive is in the file of all texts, with that text.
    let all = fs::read_to_string(folder.join("licenses/TEXTS")).unwrap();
    let overview = fs::read_to_string(folder.join("licenses/THIRD-PARTY")).unwrap();
    for part in bill["components"].as_array().unwrap() {
        let (name, version) = (part["name"].as_str().unwrap(), part["version"].as_str().unwrap());
        let apart = overview.contains(&format!("{name} {version}: ")) && overview.contains("see ../LICENSE");
        assert!(
            name == "rust" || apart || all.contains(&format!("\n{name} {version}")),
            "{name} {version} has no text"
        );
    }
}
