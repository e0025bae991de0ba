//! State files: read by the supervisor, by the next boot and by a rollback.
//!
//! Names and meanings of the files directly on the state partition are those of shell releases and of the supervisor; the others are
//! copal's own. Every function returns after its change is on the medium.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::sys::file::{self, Content, Folder};

mod records;

pub use records::{
    BootfilesRecord, CommitDue, DeviceTreeRecord, Marker, RollbackKind, RollbackRecord, Trial, UnitList,
};

/// While it exists, the supervisor does not reboot, and `rollback-health` runs at boot.
const HEALTH_BREADCRUMB: &str = "rollback-health-breadcrumb";
/// While it exists, `rollback-altboot` runs at boot.
const ALTBOOT_BREADCRUMB: &str = "rollback-altboot-breadcrumb";
/// The state of the running system before the update.
const VARIABLES: &str = "rollback-health-variables";

/// Limit in bytes. The list of units has the most: some kilobytes, or a hundred with a thousand mounted container layers.
const MAX_STATE_BYTES: u64 = 1 << 20;

pub fn any_breadcrumb(paths: &Paths) -> Result<bool> {
    Ok(is_there(&paths.state().join(HEALTH_BREADCRUMB))?
        || is_there(&paths.state().join(ALTBOOT_BREADCRUMB))?)
}

pub fn drop_breadcrumbs(paths: &Paths) -> Result<()> {
    for name in [HEALTH_BREADCRUMB, ALTBOOT_BREADCRUMB] {
        if !is_there(&paths.state().join(name))? {
            write(&paths.state(), name, b"")?;
        }
    }
    Ok(())
}

/// Removes the health checks' file last: while one is left, the next boot notices a cut.
pub fn remove_breadcrumbs(paths: &Paths) -> Result<()> {
    remove(&paths.state(), ALTBOOT_BREADCRUMB)?;
    remove(&paths.state(), HEALTH_BREADCRUMB)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flag {
    /// The new system ran and failed; the device was rolled back.
    HealthTriggered,
    /// The bootloader fell back, and the device was rolled back.
    AltbootTriggered,
    /// The rollback failed: the other root could not be mounted, or its boot files could not be restored.
    HealthFailed,
}

impl Flag {
    pub const ALL: [Flag; 3] = [Flag::HealthTriggered, Flag::AltbootTriggered, Flag::HealthFailed];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Flag::HealthTriggered => "rollback-health-triggered",
            Flag::AltbootTriggered => "rollback-altboot-triggered",
            Flag::HealthFailed => "rollback-health-failed",
        }
    }

    pub(crate) fn is_up(self, paths: &Paths) -> Result<bool> {
        is_there(&paths.state().join(self.name()))
    }

    pub fn raise(self, paths: &Paths) -> Result<()> {
        write(&paths.state(), self.name(), b"")
    }

    pub fn lower(self, paths: &Paths) -> Result<()> {
        remove(&paths.state(), self.name())
    }
}

pub fn keep_vpn_state(paths: &Paths, up: bool) -> Result<()> {
    let text = format!("BALENAOS_ROLLBACK_VPNONLINE={}\n", u8::from(up));
    write(&paths.state(), VARIABLES, text.as_bytes())
}

/// The file with the state of the running system before the update.
#[must_use]
pub(crate) fn variables(paths: &Paths) -> PathBuf {
    paths.state().join(VARIABLES)
}

/// `None` where nothing, or nothing valid, was kept in that file.
#[must_use]
pub(crate) fn kept_vpn_state(variables: &Path) -> Option<bool> {
    let text = file::read_record(variables, MAX_STATE_BYTES).ok()?;
    let value = text.lines().rev().find_map(|l| l.trim().strip_prefix("BALENAOS_ROLLBACK_VPNONLINE="))?;
    match value.trim_matches(['"', '\'']) {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

pub(crate) fn remove_variables(paths: &Paths) -> Result<()> {
    remove(&paths.state(), VARIABLES)
}

/// Removes temporary files of interrupted writes. One that cannot be removed does no harm.
pub fn sweep(paths: &Paths) {
    for folder in [paths.state(), paths.state_files(), paths.run_files()] {
        let swept = match Folder::open(&folder) {
            Ok(folder) => file::sweep(&folder).map(drop),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        };
        if let Err(e) = swept {
            tracing::warn!("cannot clean up {}: {e}", folder.display());
        }
    }
}

/// The records on the state partition, whose places hold nothing else.
const RECORDS: [&str; 7] = [
    BootfilesRecord::NAME,
    RollbackRecord::NAME,
    Trial::NAME,
    CommitDue::NAME,
    super::history::FILE_NAME,
    UnitList::NAME,
    DeviceTreeRecord::NAME,
];

/// The places of records that hold something else, as errors.
#[must_use]
pub(crate) fn irregular_records(paths: &Paths) -> Vec<Error> {
    let places = RECORDS.iter().map(|name| paths.state_files().join(name));
    places.filter(|path| is_irregular(path)).map(|path| irregular(&path)).collect()
}

/// Makes these places usable again: to be called before an update reads them. No program of balenaOS puts anything there.
pub(crate) fn remove_irregular(paths: &Paths) -> Result<()> {
    let folder = paths.state_files();
    RECORDS.iter().filter(|name| is_irregular(&folder.join(name))).try_for_each(|name| clear(&folder, name))
}

/// Removes damaged records. No boot needs one: without the record of a rollback the bootloader's selection decides, and a system
/// that failed is tried, and fails, again. Called at boot only.
pub(crate) fn remove_damaged(paths: &Paths) {
    let damaged = |e: &Error| e.code() == Code::StateInvalid;
    let removed = [
        RollbackRecord::read(paths).err().filter(damaged).map(|e| (e, RollbackRecord::remove(paths))),
        Marker::read(paths).err().filter(damaged).map(|e| (e, Marker::remove(paths))),
    ];
    for (e, result) in removed.into_iter().flatten() {
        match result {
            Ok(()) => tracing::warn!("{}; removing it", e.message()),
            Err(also) => tracing::error!("{}; {}", e.message(), also.message()),
        }
    }
}

/// Identifies an update, from its beginning to its verdict.
pub(crate) fn new_transaction() -> Result<String> {
    // The kernel's, even in tests with another root: it is not a fact about a device.
    let file = Path::new("/proc/sys/kernel/random/uuid");
    let text = fs::read_to_string(file).map_err(|e| cannot_read(file, e))?;
    Ok(text.trim().to_owned())
}

pub fn boot_id(paths: &Paths) -> Result<String> {
    let file = paths.at("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(&file).map_err(|e| cannot_read(&file, e))?;
    Ok(text.trim().to_owned())
}

fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().map_err(|e| cannot_read(path, e))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match file::read_record(path, MAX_STATE_BYTES) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) if is_irregular(path) => return Err(irregular(path)),
        Err(e) => {
            let damaged =
                [io::ErrorKind::InvalidInput, io::ErrorKind::InvalidData, io::ErrorKind::FileTooLarge];
            return Err(if damaged.contains(&e.kind()) { invalid(path, e) } else { cannot_read(path, e) });
        }
    };
    serde_json::from_str(&text).map(Some).map_err(|e| invalid(path, e))
}

fn put(folder: &Path, name: &str, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(value).map_err(|e| {
        Error::new(Code::StateUnwritable, format!("cannot write {}", folder.join(name).display())).because(e)
    })?;
    text.push(b'\n');
    make_folder(folder)?;
    clear(folder, name)?;
    write(folder, name, &text)
}

/// Creates only the last part: a missing parent is a partition that is not mounted.
fn make_folder(folder: &Path) -> Result<()> {
    let made = || -> io::Result<()> {
        if folder.try_exists()? {
            return Ok(());
        }
        let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else { return Ok(()) };
        match file::make_folder(&Folder::open(parent)?, name) {
            // Another thread or process has created it meanwhile.
            Err(_) if folder.is_dir() => Ok(()),
            made => made,
        }
    };
    made().map_err(|e| unwritable(folder, e))
}

fn write(folder: &Path, name: &str, text: &[u8]) -> Result<()> {
    let written = || {
        let folder = Folder::open(folder)?;
        // Temporary files of killed changes would fill a small partition.
        file::sweep(&folder)?;
        file::replace(&folder, OsStr::new(name), &Content::Bytes(text))
    };
    written().map(drop).map_err(|e| unwritable(&folder.join(name), e))
}

/// Removes a record, or what is in its place.
fn discard(folder: &Path, name: &str) -> Result<()> {
    if is_irregular(&folder.join(name)) { clear(folder, name) } else { remove(folder, name) }
}

fn remove(folder: &Path, name: &str) -> Result<()> {
    let removed = || match Folder::open(folder) {
        Ok(folder) => file::remove(&folder, OsStr::new(name)).map(drop),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    };
    removed().map_err(|e| unwritable(&folder.join(name), e))
}

/// Removes anything that has the name of a record and is not a regular file.
fn clear(folder: &Path, name: &str) -> Result<()> {
    let path = folder.join(name);
    let cleared = Folder::open(folder).and_then(|f| file::remove_irregular(&f, OsStr::new(name)));
    if cleared.map_err(|e| unwritable(&path, e))? {
        tracing::warn!("removed {}: it was not a regular file", path.display());
    }
    Ok(())
}

fn is_irregular(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| !there.is_file())
}

fn irregular(path: &Path) -> Error {
    Error::new(Code::StateInvalid, format!("{} is not a regular file", path.display()))
        .object(path.display())
        .with_hint("the next update removes it")
}

fn invalid(path: &Path, e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Code::StateInvalid, format!("cannot parse {}", path.display()))
        .object(path.display())
        .because(e)
}

fn cannot_read(path: &Path, e: io::Error) -> Error {
    let code = if e.kind() == io::ErrorKind::PermissionDenied { Code::NotRoot } else { Code::Io };
    Error::new(code, format!("cannot read {}", path.display())).object(path.display()).because(e)
}

fn unwritable(path: &Path, e: io::Error) -> Error {
    Error::new(Code::StateUnwritable, format!("cannot change {}", path.display()))
        .object(path.display())
        .because(e)
}

#[cfg(test)]
mod tests;
