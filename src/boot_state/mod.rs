//! Boot state: what the bootloader reads to decide which root partition boots, how often it has tried, and whether an update
//! is pending.
//!
//! Three backends behind one trait. Every change is durable and read back when a verb returns, and at every instant of it the
//! bootloader finds either the old or the new selection.

mod balena;
pub mod change;
mod env_file;
pub mod envblock;
mod grub;
mod locate;
mod retire;
mod uboot;
pub mod uenv;

use std::path::Path;

use change::Plan;
pub use locate::{balena, detect, grub, uboot};
pub use retire::{Keep, retire_others};

use crate::error::{Code, Error, Result};
use crate::slot::{Root, Slot};

/// A root partition as a backend names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    /// By the number of its partition.
    Index(u32),
    /// By its letter, or by its label.
    Slot(Slot),
    /// By something that names neither; as it is in the file.
    Other(String),
}

impl Named {
    /// Whether `root` is meant.
    #[must_use]
    pub fn means(&self, root: &Root) -> bool {
        match self {
            Named::Index(index) => *index == root.index,
            Named::Slot(slot) => *slot == root.slot,
            Named::Other(_) => false,
        }
    }
}

/// What the bootloader will go by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootState {
    /// The root that is selected.
    pub root: Named,
    /// How often the bootloader has tried it.
    pub bootcount: u32,
    /// Whether it is on trial: the bootloader counts its attempts, and takes the other one after too many.
    pub upgrade_available: bool,
}

impl BootState {
    /// A root that was never on trial.
    fn untouched(root: Named) -> Self {
        BootState { root, bootcount: 0, upgrade_available: false }
    }
}

/// One way in which a bootloader is told.
pub trait Backend {
    /// Its name, for owners.
    fn name(&self) -> &'static str;

    /// The file that holds the selection. It need not be there.
    fn file(&self) -> &Path;

    /// Whether the bootloader goes back by itself to the other root after too many attempts.
    fn counts(&self) -> bool {
        true
    }

    /// How many attempts the bootloader makes, as its configuration gives the number. For the owner; see
    /// [`is_exceeded`](Self::is_exceeded) for what it means.
    fn limit(&self) -> u32;

    /// Whether the bootloader takes the other root at this count, on trial or not: a count that was left over is as dangerous as a
    /// wrong root.
    fn is_exceeded(&self, bootcount: u32) -> bool {
        self.counts() && bootcount >= self.limit()
    }

    /// What the bootloader will go by. Of a damaged file, what can be read of it.
    ///
    /// # Errors
    /// `BootStateInvalid` when the file cannot be read or understood.
    fn read(&self) -> Result<BootState>;

    /// What [`set`](Self::set) would do now: pure data, nothing is written.
    ///
    /// # Errors
    /// As for [`set`](Self::set): the selection does not fit, or the file cannot be read.
    fn plan(&self, root: &Root, upgrade_available: bool) -> Result<Plan>;

    /// Selects `root`, on trial or for good, with a count of 0. Once this returns, it is on the medium and has been read back.
    ///
    /// # Errors
    /// `BootStateUnwritable`; then the old selection holds, or the new one, never none.
    fn set(&self, root: &Root, upgrade_available: bool) -> Result<()>;

    /// Sets the count to 0 and leaves everything else. Writes nothing when it is 0.
    ///
    /// # Errors
    /// As for [`set`](Self::set).
    fn clear_bootcount(&self) -> Result<()>;

    /// A variable beside the boot decision. `None` where it is not set or empty, and with backends that have no others.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn variable(&self, name: &str) -> Result<Option<String>> {
        let _none_of_any_name = name;
        Ok(None)
    }

    /// What [`set_variables`](Self::set_variables) would do now: pure data, nothing is written.
    ///
    /// # Errors
    /// As for [`set_variables`](Self::set_variables).
    fn plan_variables(&self, changes: &[Variable<'_>]) -> Result<Plan> {
        let names = changes.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        Err(unsettable(self.file(), &names).because(format!("{} has no variables of others", self.name())))
    }

    /// Gives variables beside the boot decision a value, or (`None`) takes them away; the others and the boot decision stay. Once
    /// this returns, it is on the medium and has been read back.
    ///
    /// # Errors
    /// `BootStateUnwritable`: the backend has no such variables, its file is missing, one of the names belongs to the boot
    /// decision, or there is no room, all with nothing written; or it could not be written: then each variable has its old or
    /// its new value.
    fn set_variables(&self, changes: &[Variable<'_>]) -> Result<()> {
        self.plan_variables(changes).map(drop)
    }
}

/// A variable, and the value it is to have; `None`: it is to go.
pub type Variable<'a> = (&'a str, Option<&'a str>);

fn invalid(file: &Path) -> Error {
    Error::new(Code::BootStateInvalid, format!("cannot read the boot selection in {}", file.display()))
        .object(file.display())
}

fn unsettable(file: &Path, names: &str) -> Error {
    Error::new(Code::BootStateUnwritable, format!("cannot change {names} in {}", file.display()))
        .object(file.display())
}

fn unwritable(file: &Path) -> Error {
    Error::new(Code::BootStateUnwritable, format!("cannot change the boot selection in {}", file.display()))
        .object(file.display())
}
