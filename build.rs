//! The commit that the program is made of, for `copal --version`.
//!
//! Only release builds look for it: if debug builds did, each commit would compile the program and its tests again.

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::Command;

/// What follows a commit whose files were changed.
const MODIFIED: &str = "-modified";

/// Digits of a commit that are shown.
const SHOWN: usize = 12;

/// What a release is made of. A build after a change of these, or after a commit, looks again.
const SOURCES: [&str; 6] =
    ["src", "Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo", "scripts/no-unwinding.ld"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let build = if env::var("PROFILE")? == "release" {
        println!("cargo::rerun-if-env-changed=COPAL_COMMIT");
        println!("cargo::rerun-if-changed=COMMIT");
        commit(env::var("COPAL_COMMIT").ok().as_deref(), Path::new(&env::var("CARGO_MANIFEST_DIR")?))?
    } else {
        "debug build".to_owned()
    };
    println!("cargo::rustc-env=COPAL_VERSION={} ({build})", env::var("CARGO_PKG_VERSION")?);
    Ok(())
}

/// The commit: the one that is given, or that of an archive of the sources, or that of the checkout.
fn commit(given: Option<&str>, top: &Path) -> Result<String, String> {
    if let Some(given) = given.filter(|text| !text.is_empty()) {
        return shown(given).ok_or_else(|| format!("COPAL_COMMIT={given} is no commit of git"));
    }
    // `git archive` and scripts/pack.py put the commit there; in a checkout there is none in it.
    let archive = std::fs::read_to_string(top.join("COMMIT")).ok().and_then(|text| shown(&text));
    Ok(archive.or_else(|| checkout(top)).unwrap_or_else(|| "commit unknown".to_owned()))
}

/// A commit as it is shown; nothing where this is none.
fn shown(text: &str) -> Option<String> {
    let text = text.trim();
    let (digits, modified) = text.strip_suffix(MODIFIED).map_or((text, ""), |digits| (digits, MODIFIED));
    let known = digits.len() >= SHOWN && digits.bytes().all(|b| b.is_ascii_hexdigit());
    digits.get(..SHOWN).filter(|_| known).map(|digits| format!("{digits}{modified}"))
}

/// What git says of the checkout that is `top`.
fn checkout(top: &Path) -> Option<String> {
    let made =
        git(top, &["describe", "--always", "--exclude=*", "--abbrev=40", &format!("--dirty={MODIFIED}")])?;
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    // It has a line more after whatever moves HEAD. Where git keeps none, each build looks again.
    println!("cargo::rerun-if-changed={}", git(top, &["rev-parse", "--git-path", "logs/HEAD"])?);
    shown(&made)
}

/// What git prints. It does not look above `top`, where another checkout may be around these sources, and refuses a checkout of another user.
fn git(top: &Path, words: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // Set where git itself has started this build; they are of its checkout.
    for name in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_COMMON_DIR",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_NAMESPACE",
    ] {
        command.env_remove(name);
    }
    let out = command
        .env("GIT_CEILING_DIRECTORIES", top.parent()?)
        .arg("--no-optional-locks")
        .args(words)
        .current_dir(top)
        .output()
        .ok()?;
    if !out.status.success() {
        if top.join(".git").exists() {
            let why = String::from_utf8_lossy(&out.stderr);
            println!(
                "cargo::warning=the program will not name its commit: {}",
                why.lines().next().unwrap_or_default()
            );
        }
        return None;
    }
    Some(String::from_utf8(out.stdout).ok()?.trim().to_owned())
}
