//! Records: small JSON files with which copal tells itself, across reboots and power cuts, what it was doing.

use serde::{Deserialize, Serialize};

use super::{boot_id, put, read, remove};
use crate::config::paths::Paths;
use crate::error::Result;
use crate::slot::Slot;
use crate::state::phase::Marked;

/// "Since the last boot, an update has begun, or a rollback has ended." In memory: gone with the next boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// What has happened.
    pub kind: Marked,
    /// In which boot; one of another boot, on a `/run` that outlived it, counts for nothing.
    pub boot_id: String,
    /// Where it leads.
    pub target: Slot,
    /// Of which update.
    pub transaction: String,
}

impl Marker {
    const NAME: &'static str = "marker";

    /// The marker of this boot.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn read(paths: &Paths) -> Result<Option<Marker>> {
        let Some(marker) = read::<Marker>(&paths.run_files().join(Self::NAME))? else { return Ok(None) };
        Ok(Some(marker).filter(|m| boot_id(paths).map_or(true, |id| id == m.boot_id)))
    }

    /// Sets it.
    ///
    /// # Errors
    /// `StateUnwritable`.
    pub fn set(&self, paths: &Paths) -> Result<()> {
        put(&paths.run_files(), Self::NAME, self)
    }

    /// Removes it.
    ///
    /// # Errors
    /// `StateUnwritable`.
    pub fn remove(paths: &Paths) -> Result<()> {
        remove(&paths.run_files(), Self::NAME)
    }
}

/// Reading, writing and removing a record on the state partition.
macro_rules! kept_as {
    ($record:ident, $name:literal) => {
        impl $record {
            const NAME: &'static str = $name;

            /// The record, if there is one.
            ///
            /// # Errors
            /// It cannot be read, or is damaged.
            pub fn read(paths: &Paths) -> Result<Option<$record>> {
                read(&paths.state_files().join(Self::NAME))
            }

            /// Writes it, over any that is there.
            ///
            /// # Errors
            /// `StateUnwritable`.
            pub fn write(&self, paths: &Paths) -> Result<()> {
                put(&paths.state_files(), Self::NAME, self)
            }

            /// Removes it.
            ///
            /// # Errors
            /// `StateUnwritable`.
            pub fn remove(paths: &Paths) -> Result<()> {
                remove(&paths.state_files(), Self::NAME)
            }
        }
    };
}

/// "The boot files of one slot are being deployed." Written before the first of them, removed once the bootloader durably
/// selects that slot: in between, the boot partition may hold files of two releases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootfilesRecord {
    /// Of which update.
    pub transaction: String,
    /// Whose boot files they are.
    pub owner: Slot,
}

kept_as!(BootfilesRecord, "bootfiles");

impl BootfilesRecord {
    /// Removes it if it is that of the slot which the bootloader selects by now.
    ///
    /// # Errors
    /// `StateUnwritable`.
    pub fn settle(paths: &Paths, selected: Slot) -> Result<()> {
        match Self::read(paths) {
            Ok(Some(record)) if record.owner == selected => Self::remove(paths),
            Ok(_) => Ok(()),
            Err(e) => {
                // A damaged one says at most "a deployment was cut off"; whoever selects a slot has deployed its files.
                tracing::warn!("{e}; it is removed");
                Self::remove(paths)
            }
        }
    }
}

/// Why a device goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RollbackKind {
    /// The health checks failed.
    Health,
    /// The bootloader gave up.
    Altboot,
}

/// "A rollback is in progress."
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackRecord {
    /// The slot it leads to.
    pub target: Slot,
    /// Why.
    pub kind: RollbackKind,
    /// Of which update; empty where that is not known.
    #[serde(default)]
    pub transaction: String,
    /// The boot in which it was last worked on; empty where that is not known.
    #[serde(default)]
    pub boot_id: String,
}

kept_as!(RollbackRecord, "rollback");

impl RollbackRecord {
    /// Whether a rollback to `slot` is being worked on in this boot. A record of another boot may be one that nobody has completed: a
    /// shell release knows nothing of it.
    #[must_use]
    pub fn is_at_work(paths: &Paths, slot: Slot) -> bool {
        let record = RollbackRecord::read(paths).ok().flatten();
        record.is_some_and(|r| r.target == slot && boot_id(paths).is_ok_and(|id| id == r.boot_id))
    }
}

/// "This slot is to prove itself." Written before an update selects it, removed with the verdict. An update by a shell release
/// leaves none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Of which update.
    pub transaction: String,
    /// The slot on trial.
    pub slot: Slot,
    /// How often the system on trial has set the bootloader's count back.
    #[serde(default)]
    pub resets: u32,
}

kept_as!(Trial, "trial");

/// "The system in this slot has proved itself, and its commit hooks have not all run."
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitDue {
    /// Of which update; empty where that is not known.
    pub transaction: String,
    /// The slot that was committed.
    pub slot: Slot,
}

kept_as!(CommitDue, "commit-due");
