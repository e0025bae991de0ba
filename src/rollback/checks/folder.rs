//! Checks of the owner: executables in two folders.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use super::{Finding, RunningCheck, Trial, program};

/// The verdict depends on these.
pub(super) const REQUIRED: &str = "health.d";
/// These are only reported.
pub(super) const WANTED: &str = "health.wanted.d";

const ABOVE: &str = "/etc/copal";

/// Suffixes of backup files of editors and package managers.
const LEFT: [&str; 10] =
    ["~", ".bak", ".orig", ".rej", ".swp", ".tmp", ".dpkg-old", ".dpkg-new", ".rpmsave", ".rpmnew"];

pub(super) fn required(trial: &Trial) -> Vec<RunningCheck> {
    jobs(trial, REQUIRED)
}

pub(super) fn wanted(trial: &Trial) -> Vec<RunningCheck> {
    jobs(trial, WANTED)
}

fn jobs(trial: &Trial, folder: &'static str) -> Vec<RunningCheck> {
    let path = trial.paths.at(ABOVE).join(folder);
    let names = match names(&path) {
        Ok(names) => names,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        // An unreadable entry may be a check.
        Err(e) => {
            let why = format!("cannot read {}: {e}", path.display());
            return vec![RunningCheck::new(folder, move || Finding::failed(why))];
        }
    };
    let job = |file: &OsString| {
        let (path, limit) = (path.join(file), trial.limit);
        let name = format!("{folder}/{}", file.display());
        RunningCheck::new(name.clone(), move || check(&path, &name, limit))
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
    names.retain(|name| !is_left(&name.to_string_lossy()));
    names.sort();
    Ok(names)
}

fn is_left(name: &str) -> bool {
    name.starts_with(['.', '#']) || LEFT.iter().any(|end| name.ends_with(end))
}
