//! `os-release`: the release of an OS (`os-release(5)`).
//!
//! Lines of `KEY=value` with shell quotes. Other lines are skipped: the file describes, and decides nothing.

use std::collections::BTreeMap;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OsRelease {
    entries: BTreeMap<String, String>,
}

impl OsRelease {
    /// Of a repeated key the last value counts, as in a shell.
    #[must_use]
    pub fn parse(text: &str) -> OsRelease {
        let entries = text.lines().filter_map(entry).collect();
        OsRelease { entries }
    }

    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.get(key).map(String::as_str).filter(|v| !v.is_empty())
    }

    /// The version of the OS (meta-balena's, where the product has its own).
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.get("META_BALENA_VERSION").or_else(|| self.get("VERSION"))
    }

    /// Whether it is a development image, from when production and development images were built separately.
    #[must_use]
    pub(crate) fn is_development(&self) -> bool {
        self.get("VARIANT") == Some("Development")
    }
}

fn entry(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    let (key, value) = line.split_once('=')?;
    let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!key.is_empty() && key.chars().all(name)).then(|| (key.to_owned(), unquote(value)))
}

fn unquote(value: &str) -> String {
    if let Some(inner) = value.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')) {
        return inner.to_owned();
    }
    let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    let mut out = String::new();
    let mut chars = inner.unwrap_or(value).chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_comments_and_rubbish() {
        let text = "# os\nID=\"balena-os\"\nVERSION='5.3.1'\nA=\"x \\\"y\\\" \\$z\"\nnot a line\n=\nVARIANT=Development\nID=two\n";
        let release = OsRelease::parse(text);
        assert_eq!(release.get("ID"), Some("two"));
        assert_eq!(release.get("A"), Some("x \"y\" $z"));
        assert_eq!(release.version(), Some("5.3.1"));
        assert!(release.is_development());
        assert_eq!(release.get("MISSING"), None);
    }

    #[test]
    fn the_version_of_the_os_comes_before_that_of_the_product() {
        let release = OsRelease::parse("VERSION=\"2023.1.0\"\nMETA_BALENA_VERSION=\"5.3.1+rev2\"\n");
        assert_eq!(release.version(), Some("5.3.1+rev2"));
        assert_eq!(OsRelease::parse("VERSION=\nMETA_BALENA_VERSION=\"\"\n").version(), None);
        assert!(!OsRelease::parse("VARIANT=\"Production\"").is_development());
    }
}
