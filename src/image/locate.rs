use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Image;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};

const SUFFIXES: [&str; 3] = [".zst", ".xz", ".gz"];

pub(crate) const CORRECT_NAME: &str = "correct BALENA_IMAGE, or name the file with --image";

/// Finds the image `name` and opens it. Below `/tmp`, where every user may put files, only root may own it.
pub fn find(paths: &Paths, name: &str) -> Result<Image> {
    let path = locate(paths, name)?;
    let tmp = paths.at("/tmp");
    if path.starts_with(&tmp) { Image::open_below(&tmp, path) } else { Image::open(path) }
}

/// Finds the image `name`: one match below `/tmp` (where a migration puts it), otherwise exactly one below `/`. Where there
/// is none, the same for the name with `.zst`, `.xz` or `.gz` appended, of which there must be exactly one.
///
/// Neither search leaves its file system or follows links to folders. Folders that cannot be read or vanish are skipped.
/// Several names of one file (hard links, links to it) count once.
pub fn locate(paths: &Paths, name: &str) -> Result<PathBuf> {
    if name.is_empty() || name.contains('/') {
        let text = format!("`{name}` cannot be the file name of an image");
        return Err(missing(text, name));
    }
    let names: Vec<OsString> =
        std::iter::once("").chain(SUFFIXES).map(|suffix| OsString::from(format!("{name}{suffix}"))).collect();
    let (exact, compressed) = names.split_at(1);
    let tmp = search(&paths.at("/tmp"), &names);
    if let Some(found) = only(name, &tmp, exact)? {
        return Ok(found);
    }
    let all = search(paths.root(), &names);
    for (found, names) in [(&all, exact), (&tmp, compressed), (&all, compressed)] {
        if let Some(found) = only(name, found, names)? {
            return Ok(found);
        }
    }
    let (tmp, root) = (paths.at("/tmp"), paths.root().display());
    let text = format!(
        "no image {name}, plain or with .zst, .xz or .gz, on the file system of {} or of {root}",
        tmp.display()
    );
    Err(missing(text, name))
}

fn missing(text: String, name: &str) -> Error {
    Error::new(Code::ImageMissing, text).object(name).with_hint(CORRECT_NAME)
}

type Matches = BTreeMap<(u64, u64), PathBuf>;

fn only(name: &str, found: &Matches, names: &[OsString]) -> Result<Option<PathBuf>> {
    let mut matches: Vec<&PathBuf> =
        found.values().filter(|p| p.file_name().is_some_and(|n| names.iter().any(|w| w == n))).collect();
    matches.sort();
    match matches.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some((*one).clone())),
        several => {
            let list: Vec<String> = several.iter().map(|p| p.display().to_string()).collect();
            let text = format!("{} images match {name}: {}", several.len(), list.join(", "));
            Err(Error::new(Code::ImageAmbiguous, text).object(name))
        }
    }
}

fn search(top: &Path, names: &[OsString]) -> Matches {
    let mut found = Matches::new();
    let Ok(start) = fs::metadata(top) else { return found };
    // Bind mounts of the same file system can show a folder twice.
    let mut seen = HashSet::from([start.ino()]);
    let mut folders = vec![top.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) => {
                tracing::debug!("not searched for the image: {}: {e}", folder.display());
                continue;
            }
        };
        for entry in entries.flatten() {
            let file_name = entry.file_name();
            if names.contains(&file_name) {
                note(&mut found, entry.path(), &file_name);
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Ok(meta) = fs::symlink_metadata(entry.path())
                && meta.is_dir()
                && meta.dev() == start.dev()
                && seen.insert(meta.ino())
            {
                folders.push(entry.path());
            }
        }
    }
    found
}

/// Notes a match of any type: a later check refuses a folder with a message. A dangling link is skipped.
fn note(found: &mut Matches, path: PathBuf, name: &OsStr) {
    let Ok(meta) = fs::metadata(&path) else {
        tracing::debug!("{} leads nowhere", path.display());
        return;
    };
    let id = (meta.dev(), meta.ino());
    // Of several names of one file: the exact name, before one with a suffix, then the first in order.
    let rank = |p: &Path| (p.file_name().map_or(0, OsStr::len), p.is_symlink(), p.to_path_buf());
    let better = found.get(&id).is_none_or(|old| (name.len(), path.is_symlink(), path.clone()) < rank(old));
    if better {
        found.insert(id, path);
    }
}
