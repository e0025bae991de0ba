//! The side files of `fatrw`, which shell parts of the system use to write boot files.
//!
//! It writes `.NAME.RANDOM.MD5.md5sum` first (8 and 32 hexadecimal digits), copies that to the same name with `.tmp`, renames the
//! copy over `NAME`, and removes the first. A reader that finds an `.md5sum` whose content fits its name puts it over `NAME`: a
//! stale one would undo any other write.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::folder::bytes;

/// Whether `entry` is a side file of the file `name`.
///
/// Anything between the name and the ending counts, complete or not. Only a side file of a longer name is excluded:
/// `.config.json.….md5sum` belongs to `config.json`, not to `config`, and may be its only good copy.
#[must_use]
pub(crate) fn is_side_file(entry: &OsStr, name: &OsStr) -> bool {
    owners(entry).any(|owner| owner == name)
}

/// The files that `entry` would be a side file of.
pub(crate) fn owners(entry: &OsStr) -> impl Iterator<Item = &OsStr> {
    let hidden = bytes(entry).strip_prefix(b".").unwrap_or_default();
    let text = hidden.strip_suffix(b".md5sum").or_else(|| hidden.strip_suffix(b".tmp")).unwrap_or_default();
    let dots = text.iter().enumerate().filter(|(_, b)| **b == b'.');
    let parts = dots.filter_map(|(at, _)| Some((text.get(..at)?, text.get(at + 1..)?)));
    parts.filter(|(_, middle)| !belongs_to_longer_name(middle)).map(|(name, _)| OsStr::from_bytes(name))
}

/// `REST.RANDOM.MD5`: then the file is `NAME.REST`.
fn belongs_to_longer_name(middle: &[u8]) -> bool {
    let mut parts = middle.rsplit(|&b| b == b'.');
    hex(parts.next(), 32) && hex(parts.next(), 8) && parts.next().is_some()
}

fn hex(part: Option<&[u8]>, len: usize) -> bool {
    part.is_some_and(|p| p.len() == len && p.iter().all(u8::is_ascii_hexdigit))
}

/// The MD5 in the name of a side file, in lower-case hex.
pub(super) fn digest_of_name(entry: &OsStr) -> Option<String> {
    let mut parts = bytes(entry).strip_suffix(b".md5sum")?.rsplit(|&b| b == b'.');
    let digest = parts.next().filter(|d| hex(Some(d), 32))?;
    hex(parts.next(), 8).then(|| String::from_utf8_lossy(digest).to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn every_side_file_of_the_name_and_of_no_other() {
        let yes = |entry: &str, name: &str| assert!(is_side_file(entry.as_ref(), name.as_ref()), "{entry}");
        let no = |entry: &str, name: &str| assert!(!is_side_file(entry.as_ref(), name.as_ref()), "{entry}");
        yes(&format!(".config.json.12ab34cd.{HASH}.md5sum"), "config.json");
        yes(&format!(".config.json.12ab34cd.{HASH}.tmp"), "config.json");
        yes(".config.json.cut.md5sum", "config.json");
        yes(".config.json.x.tmp", "config.json");
        no(".config.json.md5sum", "config.json");
        no(".config.json.12ab34cd.md5", "config.json");
        no("config.json.12ab34cd.tmp", "config.json");
        no(&format!(".config.json.12ab34cd.{HASH}.md5sum"), "config");
        no(&format!(".config.json.12ab34cd.{HASH}.md5sum"), "config.jso");
        no(&format!(".config.json.12ab34cd.{HASH}.md5sum"), "onfig.json");
    }

    #[test]
    fn only_a_whole_name_says_what_the_content_must_be() {
        let digest = |name: String| digest_of_name(name.as_ref());
        assert_eq!(digest(format!(".f.12ab34cd.{HASH}.md5sum")).as_deref(), Some(HASH));
        for other in [
            format!(".f.12ab34cd.{HASH}.tmp"),
            format!(".f.12ab34c.{HASH}.md5sum"),
            format!(".f.12ab34cd.{}.md5sum", &HASH[1..]),
            ".f.12ab34cd.md5sum".to_owned(),
        ] {
            assert_eq!(digest(other.clone()), None, "{other}");
        }
    }
}
