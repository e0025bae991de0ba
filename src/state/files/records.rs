//! Records: small JSON files that outlive reboots and power cuts. They say what copal was doing.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{boot_id, discard, put, read, unwritable};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::slot::Slot;
use crate::state::phase::Marked;
use crate::sys::file;

/// An update has begun, or a rollback has ended, in this boot. The file is in memory: a reboot removes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    pub kind: Marked,
    /// A record of another boot, on a `/run` that outlived it, is ignored.
    pub boot_id: String,
    pub target: Slot,
    pub transaction: String,
}

impl Marker {
    const NAME: &'static str = "marker";

    pub fn read(paths: &Paths) -> Result<Option<Marker>> {
        let Some(marker) = read::<Marker>(&paths.run_files().join(Self::NAME))? else { return Ok(None) };
        Ok(Some(marker).filter(|m| boot_id(paths).map_or(true, |id| id == m.boot_id)))
    }

    pub fn set(&self, paths: &Paths) -> Result<()> {
        let folder = paths.run_files();
        file::make_private(&folder).map_err(|e| unwritable(&folder, e))?;
        put(&folder, Self::NAME, self)
    }

    pub fn remove(paths: &Paths) -> Result<()> {
        discard(&paths.run_files(), Self::NAME)
    }
}

macro_rules! kept_as {
    ($record:ident, $name:literal) => {
        impl $record {
            pub(super) const NAME: &'static str = $name;

            pub fn read(paths: &Paths) -> Result<Option<$record>> {
                read(&paths.state_files().join(Self::NAME))
            }

            pub fn write(&self, paths: &Paths) -> Result<()> {
                put(&paths.state_files(), Self::NAME, self)
            }

            pub fn remove(paths: &Paths) -> Result<()> {
                discard(&paths.state_files(), Self::NAME)
            }
        }
    };
}

/// The boot files of slot `owner` are being deployed. Written before the first file, removed once the bootloader durably selects
/// that slot: in between, the boot partition may hold files of two releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootfilesRecord {
    pub transaction: String,
    pub owner: Slot,
}

kept_as!(BootfilesRecord, "bootfiles");

impl BootfilesRecord {
    /// Removes the record if the bootloader now selects its slot.
    pub fn settle(paths: &Paths, selected: Slot) -> Result<()> {
        match Self::read(paths) {
            Ok(Some(record)) if record.owner == selected => Self::remove(paths),
            Ok(_) => Ok(()),
            Err(e) => {
                // A damaged record says at most that a deployment was cut off. The program that selected a slot has deployed its files.
                tracing::warn!("{e}; removing it");
                Self::remove(paths)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RollbackKind {
    Health,
    Altboot,
}

/// A rollback is in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackRecord {
    pub target: Slot,
    pub kind: RollbackKind,
    /// The update's; empty where it is not known.
    #[serde(default)]
    pub transaction: String,
    /// The boot that last worked on it; empty where it is not known.
    #[serde(default)]
    pub boot_id: String,
}

kept_as!(RollbackRecord, "rollback");

impl RollbackRecord {
    /// Whether this boot works on a rollback to `slot`. A record of another boot may be complete: a shell release does not remove it.
    #[must_use]
    pub(crate) fn is_at_work(paths: &Paths, slot: Slot) -> bool {
        let record = RollbackRecord::read(paths).ok().flatten();
        record.is_some_and(|r| r.target == slot && boot_id(paths).is_ok_and(|id| id == r.boot_id))
    }
}

/// `slot` is on trial. Written before an update selects it, removed with the verdict. An update by a shell release writes none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    pub transaction: String,
    pub slot: Slot,
    /// How often the system on trial has set the boot count to 0.
    #[serde(default)]
    pub resets: u32,
}

kept_as!(Trial, "trial");

/// The units that were active before the update `transaction`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitList {
    pub transaction: String,
    pub units: Vec<String>,
}

kept_as!(UnitList, "units");

/// The properties that identified the running kernel's device tree as the owner's, before the update `transaction`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTreeRecord {
    pub transaction: String,
    /// Below the boot folder.
    pub path: PathBuf,
    pub properties: BTreeSet<String>,
}

kept_as!(DeviceTreeRecord, "device-tree");

/// `slot` is committed, and its commit hooks have not all run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitDue {
    pub transaction: String,
    pub slot: Slot,
    /// A hook could not do its work in this start, and has to run in the next one.
    #[serde(default)]
    pub again: bool,
}

kept_as!(CommitDue, "commit-due");
