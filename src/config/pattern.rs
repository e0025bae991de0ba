//! Device patterns: `md/balena{,_*} nvme?n? sd? mmcblk?`.
//!
//! A list of words below `/dev`. Each word goes through brace expansion, then wildcards, as in bash. All matches of one word,
//! with all its brace alternatives, form one list in byte order, the order in which the shell flasher listed them with `ls`.
//! A word names a set of disks; the order of words gives the preference.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use glob::MatchOptions;

use super::{braces, read};
use crate::error::{Code, Error, Result};

/// The longest known list has 40 bytes.
const MAX_LIST: usize = 4096;

const MAX_ENTRIES: usize = 1 << 16;

const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    alternatives: Vec<Alternative>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Alternative {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Wild(glob::Pattern),
}

/// In order; empty for a list of white space. `TargetPattern` names the wrong word.
pub fn expand(list: &str) -> Result<Vec<Pattern>> {
    if list.len() > MAX_LIST {
        return Err(Error::new(
            Code::TargetPattern,
            format!("the list of device patterns has more than {MAX_LIST} bytes: {}", read::shown(list)),
        ));
    }
    let mut total = 0;
    let mut patterns = Vec::new();
    for word in list.split_ascii_whitespace() {
        let pattern = Pattern::new(word)?;
        total += pattern.alternatives.len();
        if total > braces::MAX_WORDS {
            return Err(refused(word, why_refused(braces::Refusal::Words)));
        }
        patterns.push(pattern);
    }
    Ok(patterns)
}

impl Pattern {
    pub fn new(word: &str) -> Result<Self> {
        if let Some(c) = word.chars().find(|&c| refused_character(c)) {
            let c = c.escape_debug();
            return Err(refused(word, format!("the character `{c}` cannot be part of a device name")));
        }
        let relative = word.strip_prefix("/dev/").unwrap_or(word);
        // Expanded with its folder in front, as the shell did: a brace at the start of a word means something else there.
        let words = braces::expand(&format!("/dev/{relative}")).map_err(|e| refused(word, why_refused(e)))?;
        let mut alternatives = Vec::new();
        for name in words {
            let name = name.strip_prefix("/dev/").unwrap_or(&name);
            let name = name.strip_prefix("/dev/").unwrap_or(name); // `{/dev/sda,sdb}`
            if !name.is_empty() {
                alternatives.push(Alternative::new(word, name)?);
            }
        }
        if alternatives.is_empty() {
            return Err(refused(word, "it names no device".to_owned()));
        }
        Ok(Pattern { text: relative.to_owned(), alternatives })
    }

    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn alternatives(&self) -> impl Iterator<Item = &str> {
        self.alternatives.iter().map(|a| a.text.as_str())
    }

    /// Whether the word names MD arrays, so that disks of an array are possible targets.
    #[must_use]
    pub fn is_md(&self) -> bool {
        self.text.starts_with("md/")
    }

    /// In byte order, each once. Fails for a folder that cannot be read, or with more entries than any device folder has.
    pub fn matches(&self, dev_dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut budget = MAX_ENTRIES;
        let mut found = BTreeSet::new(); // `OsString` compares bytes, `PathBuf` would compare part by part
        for alternative in &self.alternatives {
            alternative.collect(dev_dir, &mut budget, &mut found)?;
        }
        Ok(found.into_iter().map(PathBuf::from).collect())
    }
}

impl Alternative {
    fn new(word: &str, name: &str) -> Result<Self> {
        if name.starts_with('/') {
            return Err(refused(word, "it leads out of /dev".to_owned()));
        }
        let mut parts = Vec::new();
        for part in name.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(refused(word, "`..` leads out of /dev".to_owned())),
                _ => parts.push(Part::new(part).map_err(|why| refused(word, why))?),
            }
        }
        if parts.is_empty() {
            return Err(refused(word, "it names no device".to_owned()));
        }
        Ok(Alternative { text: name.to_owned(), parts })
    }

    fn collect(&self, dev_dir: &Path, budget: &mut usize, found: &mut BTreeSet<OsString>) -> io::Result<()> {
        let mut level = vec![dev_dir.to_owned()];
        for part in &self.parts {
            let mut next = Vec::new();
            for folder in &level {
                match part {
                    Part::Literal(name) => next.push(folder.join(name)),
                    Part::Wild(pattern) => wild_matches(folder, pattern, budget, &mut next)?,
                }
            }
            level = next;
        }
        // As in a shell, a dangling link is a match; the caller finds that it is not a disk.
        found.extend(level.into_iter().filter(|p| p.symlink_metadata().is_ok()).map(PathBuf::into_os_string));
        Ok(())
    }
}

impl Part {
    fn new(text: &str) -> Result<Self, String> {
        if !text.contains(['*', '?', '[']) {
            return Ok(Part::Literal(text.to_owned()));
        }
        if ["[:", "[.", "[="].iter().any(|class| text.contains(class)) {
            return Err(
                "character classes such as `[:digit:]` are not supported; write a range such as `[0-9]`"
                    .into(),
            );
        }
        // Two spellings of bash that the matcher reads differently.
        let mut glob = text.replace("[^", "[!");
        while glob.contains("**") {
            glob = glob.replace("**", "*");
        }
        glob::Pattern::new(&glob).map(Part::Wild).map_err(|e| e.msg.to_owned())
    }
}

fn wild_matches(
    folder: &Path,
    glob: &glob::Pattern,
    budget: &mut usize,
    to: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let name = entry?.file_name();
        *budget = budget.checked_sub(1).ok_or_else(|| {
            io::Error::other(format!("more than {MAX_ENTRIES} entries to check for `{glob}`"))
        })?;
        // The kernel and udev name devices in ASCII; a name that is not UTF-8 is not theirs.
        if std::str::from_utf8(name.as_bytes()).is_ok_and(|n| glob.matches_with(n, OPTIONS)) {
            to.push(folder.join(name));
        }
    }
    Ok(())
}

/// Shell operators, and characters that no device name has.
fn refused_character(c: char) -> bool {
    c.is_control() || c.is_whitespace() || "\\'\"`$;&|<>()".contains(c)
}

fn why_refused(why: braces::Refusal) -> String {
    match why {
        braces::Refusal::Words => format!("its braces stand for more than {} names", braces::MAX_WORDS),
        braces::Refusal::Depth => "its braces are nested too deeply".to_owned(),
        braces::Refusal::Sequence => {
            "its braces hold a sequence (`..`); write a list instead, such as {a,b,c}".to_owned()
        }
    }
}

fn refused(word: &str, why: impl Into<String>) -> Error {
    let word = read::shown(word);
    Error::new(Code::TargetPattern, format!("the device pattern `{word}` cannot be used"))
        .object(&word)
        .because(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(dir: &Path, list: &str) -> Vec<String> {
        let relative = |p: PathBuf| p.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
        expand(list).unwrap().iter().flat_map(|p| p.matches(dir).unwrap()).map(relative).collect()
    }

    #[test]
    fn wildcards_stay_in_their_folder_and_before_dots() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("md")).unwrap();
        fs::create_dir_all(dir.path().join("md-x")).unwrap();
        for name in ["md/a", "md/.b", "md-x/a", ".sda", "sda", "sda1", "sdb", "sd\u{e4}"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("nowhere", dir.path().join("sdl")).unwrap();
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"sd\xff")), "").unwrap();
        let all = |list| found(dir.path(), list);
        assert_eq!(all("*"), ["md", "md-x", "sda", "sda1", "sdb", "sdl", "sd\u{e4}"]);
        assert_eq!(all("md*/*"), ["md-x/a", "md/a"], "in byte order: `-` comes before `/`");
        assert_eq!(all("[!a-r]d[ab]* sda /dev/sdb"), ["sda", "sda1", "sdb", "sda", "sdb"]);
        assert_eq!(all("[^s]?"), ["md"]);
        assert_eq!(all("s**1 md/.b .sda"), ["sda1", "md/.b", ".sda"]);
        assert_eq!(all("{sdb,sda,sda}"), ["sda", "sdb"], "one word is one set");
        assert_eq!(all("sda/* none/* none md/none {,sdb}"), ["sdb"]);
    }

    #[test]
    fn what_is_no_device_name_is_refused() {
        let long = "a".repeat(MAX_LIST + 1);
        let bad = [
            "../sda",
            "md/../../x",
            "a/{..,b}/c",
            "/sys/block",
            "/dev/",
            "{,}",
            "sd[a",
            "sd[[:alpha:]]",
            "$x",
            "a\\b",
            "`x`",
            "a;b",
            "sd\u{1}",
            "sd\u{a0}",
            "sd{a..c}",
            &long,
        ];
        for list in bad {
            let e = expand(list).unwrap_err();
            assert_eq!(e.code(), Code::TargetPattern, "{list}");
            assert!(e.to_string().len() < 300, "{e}");
        }
        assert_eq!(expand(" \t\n").unwrap(), []);
        let e = expand("sda ../sdb").unwrap_err();
        assert_eq!(e.subject(), Some("../sdb"));
        let most = "{a,b}".repeat(10);
        assert!(
            expand(&most).is_ok() && expand(&format!("{most} c")).is_err(),
            "the bound is one of the whole list"
        );
    }
}
