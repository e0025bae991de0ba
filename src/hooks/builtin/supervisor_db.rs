//! `75-supervisor-db` and `76-supervisor-db`: copy the supervisor's database to the folder where a newer supervisor reads it.
//!
//! It moved twice: some releases before v2.64.1 had it in `/mnt/data/resin-supervisor`, those before v2.80.10 in
//! `resin-data/resin-supervisor`. An update copies it; the commit of the release removes the old folder, so that after a rollback the
//! old supervisor finds its own.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::support::split;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::sys::file::{self, Content, Folder};

const DATABASE: &str = "database.sqlite";

/// Files of `SQLite` with changes that are not in the database yet, or must be reverted. A copy without them may lack the last commits;
/// old ones beside a new copy would be applied to it.
const BESIDE: [&str; 2] = ["database.sqlite-wal", "database.sqlite-journal"];

/// An index of the first, in shared memory. Each process that opens the database rebuilds it.
const INDEX: &str = "database.sqlite-shm";

const ATTEMPTS: u32 = 3;

struct Move {
    from: &'static str,
    to: &'static str,
}

const FIRST: Move = Move { from: "resin-supervisor", to: "resin-data/resin-supervisor" };
const SECOND: Move = Move { from: "resin-data/resin-supervisor", to: "resin-data/balena-supervisor" };

pub(super) fn forward_first(context: &Context) -> Result<()> {
    FIRST.forward(&context.paths)
}

pub(super) fn commit_first(context: &Context) -> Result<()> {
    FIRST.commit(&context.paths)
}

pub(super) fn forward_second(context: &Context) -> Result<()> {
    SECOND.forward(&context.paths)
}

pub(super) fn commit_second(context: &Context) -> Result<()> {
    SECOND.commit(&context.paths)
}

impl Move {
    fn folders(&self, paths: &Paths) -> (PathBuf, PathBuf) {
        (paths.data().join(self.from), paths.data().join(self.to))
    }

    fn forward(&self, paths: &Paths) -> Result<()> {
        let (from, to) = self.folders(paths);
        let Some(source) = database(&from) else { return Ok(()) };
        if let Some(copy) = database(&to) {
            if (copy.dev(), copy.ino()) == (source.dev(), source.ino()) {
                return Ok(());
            }
            if is_newer(&copy, &source) {
                tracing::warn!("{} is newer than {}; keeping it", to.display(), from.display());
                return Ok(());
            }
        }
        copy_all(&from, &to).map_err(|e| {
            let text = format!("cannot copy the database in {} to {}", from.display(), to.display());
            Error::new(Code::DataUnwritable, text).object(to.display()).because(e)
        })?;
        tracing::info!("copied the supervisor's database from {} to {}", from.display(), to.display());
        Ok(())
    }

    fn commit(&self, paths: &Paths) -> Result<()> {
        let (from, to) = self.folders(paths);
        let (Some(source), Some(copy)) = (database(&from), database(&to)) else { return Ok(()) };
        if (copy.dev(), copy.ino()) == (source.dev(), source.ino()) {
            return Ok(());
        }
        if !is_newer(&copy, &source) {
            tracing::warn!("{} is not newer than {}; keeping both", to.display(), from.display());
            return Ok(());
        }
        remove_all(&from).map_err(|e| {
            Error::new(Code::DataUnwritable, format!("cannot remove {}", from.display()))
                .object(from.display())
                .because(e)
        })?;
        tracing::info!("removed {}, which is no longer used", from.display());
        Ok(())
    }
}

fn database(folder: &Path) -> Option<Metadata> {
    fs::metadata(folder.join(DATABASE)).ok().filter(Metadata::is_file)
}

/// Strictly: of two files with the same time the older one is unknown.
fn is_newer(copy: &Metadata, source: &Metadata) -> bool {
    (copy.mtime(), copy.mtime_nsec()) > (source.mtime(), source.mtime_nsec())
}

/// Repeats while files change: the supervisor may be running.
fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    file::make_folders(to)?;
    let mut attempt = 1;
    loop {
        let before = stamps(from);
        let done = copy_once(from, to);
        if stamps(from) == before || attempt == ATTEMPTS {
            return done;
        }
        tracing::warn!("the database in {} changed while it was copied; copying it again", from.display());
        attempt += 1;
    }
}

fn stamps(folder: &Path) -> Vec<Option<(i64, i64, u64)>> {
    let names = [DATABASE].into_iter().chain(BESIDE);
    names
        .map(|name| fs::metadata(folder.join(name)).ok().map(|m| (m.mtime(), m.mtime_nsec(), m.len())))
        .collect()
}

/// Copies the database last: its time says that the copy is complete.
fn copy_once(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (Folder::open(from)?, Folder::open(to)?);
    file::sweep(&to)?;
    file::remove(&to, INDEX.as_ref())?;
    for name in BESIDE {
        match from.hold(name.as_ref())? {
            Some(source) => file::replace(&to, name.as_ref(), &Content::File(&source)).map(drop)?,
            None => file::remove(&to, name.as_ref()).map(drop)?,
        }
    }
    let source = from.open_file(DATABASE.as_ref())?;
    file::replace(&to, DATABASE.as_ref(), &Content::File(&source))?;
    make_newer(&to, &source)
}

/// Makes the copy one second newer than its source, even if the content is the same or the clock is wrong: devices without a battery
/// start in the past, and shell releases compare seconds.
fn make_newer(to: &Folder, source: &File) -> io::Result<()> {
    let (copy, source) = (to.open_file(DATABASE.as_ref())?, source.metadata()?);
    if is_newer(&copy.metadata()?, &source) {
        return Ok(());
    }
    copy.set_modified(source.modified()? + Duration::from_secs(1))?;
    copy.sync_all()
}

/// Removes the database last: after a power cut, the next commit continues.
fn remove_all(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == DATABASE {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    File::open(folder)?.sync_all()?;
    fs::remove_dir_all(folder)?;
    let (parent, _) = split(folder);
    File::open(parent)?.sync_all()
}
