//! Checks of the owner: executables in two folders.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use super::{CheckContext, Finding, PendingCheck, program};

/// The verdict depends on these.
pub(super) const REQUIRED: &str = "health.d";
/// These are only reported.
pub(super) const REPORTED: &str = "health.wanted.d";

const PARENT_FOLDER: &str = "/etc/copal";

/// Suffixes of backup files of editors and package managers.
const BACKUP_SUFFIXES: [&str; 10] =
    ["~", ".bak", ".orig", ".rej", ".swp", ".tmp", ".dpkg-old", ".dpkg-new", ".rpmsave", ".rpmnew"];

pub(super) fn required(context: &CheckContext) -> Vec<PendingCheck> {
    checks_in(context, REQUIRED)
}

pub(super) fn reported(context: &CheckContext) -> Vec<PendingCheck> {
    checks_in(context, REPORTED)
}

fn checks_in(context: &CheckContext, folder: &'static str) -> Vec<PendingCheck> {
    let path = context.paths.at(PARENT_FOLDER).join(folder);
    let names = match names(&path) {
        Ok(names) => names,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        // An unreadable entry may be a check.
        Err(e) => {
            let why = format!("cannot read {}: {e}", path.display());
            return vec![PendingCheck::new(folder, move || Finding::failed(why))];
        }
    };
    let job = |file: &OsString| {
        let (path, limit) = (path.join(file), context.limit);
        let name = format!("{folder}/{}", file.display());
        PendingCheck::new(name.clone(), move || check(&path, &name, limit))
    };
    names.iter().map(job).collect()
}

fn check(path: &Path, name: &str, limit: Duration) -> Finding {
    let idle = |why: &str| {
        tracing::warn!("not running {}: {why}", path.display());
        Finding::unknown(format!("it is not run: {why}"))
    };
    match fs::metadata(path) {
        // The owner did not put that there.
        Err(e) => Finding::failed(format!("cannot read {}: {e}", path.display())),
        Ok(file) if !file.is_file() => idle("it is not a file"),
        Ok(file) if file.permissions().mode() & 0o111 == 0 => idle("it is not executable (chmod +x)"),
        Ok(_) => program::check(path, name, limit),
    }
}

fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    let mut names = names.collect::<io::Result<Vec<OsString>>>()?;
    names.retain(|name| !is_backup(&name.to_string_lossy()));
    names.sort();
    Ok(names)
}

fn is_backup(name: &str) -> bool {
    name.starts_with(['.', '#']) || BACKUP_SUFFIXES.iter().any(|end| name.ends_with(end))
}
