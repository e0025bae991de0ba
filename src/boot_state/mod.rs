//! Boot state: what the bootloader reads to choose a root partition, the boot count, and whether the selection is on trial.
//!
//! Three backends with one trait. A change is durable and read back when its function returns; at every instant the bootloader
//! finds either the old or the new selection.

mod balena;
mod change;
mod configured;
mod env_file;
pub mod envblock;
mod grub;
mod locate;
mod retire;
mod uboot;
pub mod uenv;
pub mod variables;

use std::fmt;
use std::path::Path;

pub use locate::{balena, detect, detect_to_change, grub, uboot};
pub use retire::{Keep, retire_others};
pub(crate) use uboot::{EXTRA_FILE, UENV_FILE, returns};

use envblock::Damage;

use crate::error::{Code, Error, Result};
use crate::slot::{Root, Slot};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Named {
    Index(u32),
    Slot(Slot),
    /// Text of the file that names neither root.
    Other(String),
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Index(index) => write!(f, "partition {index}"),
            Named::Slot(slot) => write!(f, "root {slot}"),
            Named::Other(text) => write!(f, "{text:?}"),
        }
    }
}

impl Named {
    #[must_use]
    pub fn means(&self, root: &Root) -> bool {
        match self {
            Named::Index(index) => *index == root.index,
            Named::Slot(slot) => *slot == root.slot,
            Named::Other(_) => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootState {
    pub root: Named,
    pub bootcount: u32,
    /// On trial: the bootloader counts boot attempts, and falls back after too many.
    pub upgrade_available: bool,
    /// Whether the bootloader finds `root` in its file. Otherwise `root` is the bootloader's default.
    pub selected: bool,
    /// What is wrong with the file. All else is as the bootloader reads it nevertheless.
    pub damage: Option<Damage>,
}

impl BootState {
    /// A file that needs nothing more to select `root`.
    fn untouched(root: Named) -> Self {
        BootState { root, bootcount: 0, upgrade_available: false, selected: true, damage: None }
    }

    fn unselected(default: Named) -> Self {
        BootState { selected: false, ..Self::untouched(default) }
    }

    /// A default root is not selected.
    #[must_use]
    pub fn selects(&self, root: &Root) -> bool {
        self.selected && self.root.means(root)
    }

    /// Whether the file must be rewritten so that `running` boots again. A device with U-Boot that was never updated has none.
    #[must_use]
    pub fn needs_repair(&self, running: &Root) -> bool {
        self.damage.is_some() || (!self.selected && !self.root.means(running))
    }
}

/// Reads and writes the boot state of one kind of bootloader.
pub trait Backend {
    fn name(&self) -> &'static str;

    /// Has the selection. The file need not exist.
    fn file(&self) -> &Path;

    /// Whether the bootloader counts boot attempts, and falls back after too many.
    fn counts(&self) -> bool {
        true
    }

    /// Boot attempts by the bootloader's configuration, to show to the operator; see [`is_exceeded`](Self::is_exceeded) for what they
    /// mean.
    fn limit(&self) -> u32;

    /// Whether the bootloader falls back at this count, on trial or not: an old count is as dangerous as a wrong root.
    fn is_exceeded(&self, bootcount: u32) -> bool {
        self.counts() && bootcount >= self.limit()
    }

    fn read(&self) -> Result<BootState>;

    /// Whether `root` may be one of the two, if they are not known from the disk.
    fn may_be_root(&self, root: &Named) -> bool {
        !matches!(root, Named::Other(_))
    }

    /// Selects `root`, on trial or for good, with a boot count of 0. On return it is on the medium and read back.
    fn set(&self, root: &Root, upgrade_available: bool) -> Result<()>;

    fn clear_bootcount(&self) -> Result<()>;

    /// What the files have that is no damage, but is not read as it was meant, by the bootloader or by other programs; each with a remedy.
    fn warnings(&self) -> Vec<(String, &'static str)> {
        Vec::new()
    }

    /// A variable that is not part of the boot decision. `None` where it is not set or empty, and with backends that have no others.
    fn variable(&self, name: &str) -> Result<Option<String>> {
        let _none_of_any_name = name;
        Ok(None)
    }

    /// Sets (or with `None` removes) variables that are not part of the boot decision; all others stay. On return the change is on the
    /// medium and read back.
    fn set_variables(&self, changes: &[Variable<'_>]) -> Result<()> {
        let names = changes.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        Err(unsettable(self.file(), &names).because(format!("{} has no other variables", self.name())))
    }
}

/// A variable and its new value; `None` removes it.
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
