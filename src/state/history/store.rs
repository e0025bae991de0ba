//! The history file: JSON lines, appended in place into space that was allocated before.
//!
//! A power cut leaves at worst a torn last line. Readers skip it; the next record begins on a line of its own; the next replacement of
//! the file, which drops the oldest records, removes it.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use super::record::Record;
use crate::config::paths::Paths;
use crate::sys::file::{self, Content, Folder};

pub(in crate::state) const FILE_NAME: &str = "history.jsonl";

pub const MAX_RECORDS: usize = 64;
pub const FILE_LIMIT: usize = 256 << 10;

/// Limit when an update starts. The rest is for what that update may add: two records of full size and some small ones.
const KEPT_BYTES: usize = FILE_LIMIT - 128 * 1024;
const KEPT_RECORDS: usize = MAX_RECORDS - 8;

pub(super) fn path(paths: &Paths) -> PathBuf {
    paths.state_files().join(FILE_NAME)
}

pub(super) fn prepare(paths: &Paths) -> io::Result<()> {
    let folder = folder(paths)?;
    let old = file::tail(&folder, OsStr::new(FILE_NAME), READ_LIMIT)?;
    let is_there = old.is_some();
    let old = old.unwrap_or_default();
    let kept = compact(&old, KEPT_RECORDS, KEPT_BYTES);
    if !is_there || kept != old {
        file::replace(&folder, OsStr::new(FILE_NAME), &content(&kept))?;
    }
    let space = folder.space()?;
    let limit = u64::try_from(FILE_LIMIT).unwrap_or(u64::MAX);
    if space.free.saturating_mul(space.unit) < limit.saturating_mul(2) {
        // The next update needs as much free space for its own files, and must not be refused because of the last one's history.
        tracing::debug!("no space is allocated for the history: {} has too little", folder.path().display());
        return Ok(());
    }
    file::reserve(&folder, OsStr::new(FILE_NAME), FILE_LIMIT)
}

pub(super) fn append(paths: &Paths, line: &str) -> io::Result<()> {
    let folder = folder(paths)?;
    let old = file::tail(&folder, OsStr::new(FILE_NAME), READ_LIMIT)?;
    if let Some(old) = &old
        && old.len() + 1 + line.len() <= FILE_LIMIT
        && split(old).count() < MAX_RECORDS
    {
        return file::append(&folder, OsStr::new(FILE_NAME), line.as_bytes());
    }
    // No space is allocated: the update was not by copal, or the device was never updated.
    let kept = old.unwrap_or_default();
    let mut kept = compact(&kept, KEPT_RECORDS, KEPT_BYTES);
    kept.extend(line.as_bytes());
    file::replace(&folder, OsStr::new(FILE_NAME), &content(&kept)).map(drop)
}

/// Without empty lines, oldest first.
pub(super) fn lines(paths: &Paths) -> io::Result<Vec<Vec<u8>>> {
    let folder = Folder::open(&paths.state_files())?;
    let all = file::tail(&folder, OsStr::new(FILE_NAME), READ_LIMIT)?.unwrap_or_default();
    Ok(split(&all).map(<[u8]>::to_vec).collect())
}

/// Another program may have made the file larger.
const READ_LIMIT: usize = 2 * FILE_LIMIT;

/// Not readable for every user: a journal may hold secrets of the owner.
const fn content(bytes: &[u8]) -> Content<'_> {
    Content::BytesAs(bytes, 0o600)
}

fn folder(paths: &Paths) -> io::Result<Folder> {
    // Creates only the last part: a missing parent is a partition that is not mounted.
    let state = Folder::open(&paths.state())?;
    let name = paths.state_files();
    let name = name.file_name().unwrap_or(OsStr::new("copal"));
    if state.entry(name)?.is_none() {
        file::make_folder(&state, name)?;
    }
    state.enter(name)
}

fn split(all: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    all.split(|&b| b == b'\n').filter(|line| !line.is_empty())
}

/// The newest records within the limits, unchanged byte by byte: keys of a later release stay. Where they are too long, the older ones
/// lose their journal before any record goes.
fn compact(all: &[u8], records: usize, bytes: usize) -> Vec<u8> {
    let sound = split(all).rev().filter(|line| Record::of_line(line).is_some());
    let (mut space, mut kept) = (bytes, Vec::new());
    for whole in sound.take(records) {
        let short = without_journal(whole);
        let Some(left) = space.checked_sub(short.len() + 1) else { break };
        space = left;
        kept.push((whole, short));
    }
    // The rest of the space is for the journals of the newest.
    let mut lines: Vec<Vec<u8>> = Vec::new();
    for (whole, short) in kept {
        match space.checked_sub(whole.len().saturating_sub(short.len())) {
            Some(left) => {
                space = left;
                lines.push(whole.to_vec());
            }
            None => {
                space = 0;
                lines.push(short);
            }
        }
    }
    lines.iter().rev().flat_map(|line| line.iter().copied().chain([b'\n'])).collect()
}

fn without_journal(line: &[u8]) -> Vec<u8> {
    let short = || -> serde_json::Result<Vec<u8>> {
        let mut record: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(line)?;
        record.insert("journal".to_owned(), serde_json::Value::Array(Vec::new()));
        serde_json::to_vec(&record)
    };
    short().unwrap_or_else(|_| line.to_vec())
}
