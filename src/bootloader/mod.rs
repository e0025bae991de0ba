//! Boot state: what the bootloader reads to decide which root partition boots, how often it has tried, and whether an update
//! is pending.
//!
//! Three dialects behind one trait. Every change is durable and read back when a verb returns, and at every instant of it the
//! bootloader finds either the old or the new selection.

use std::path::Path;

use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::slot::{Root, Slot};

/// A root partition as a dialect names it.
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

/// One way in which a bootloader is told.
pub trait Dialect {
    /// Its name, for owners.
    fn name(&self) -> &'static str;

    /// The file that holds the selection. It need not be there.
    fn file(&self) -> &Path;

    /// Whether the bootloader goes back by itself to the other root after too many attempts.
    fn counts(&self) -> bool {
        true
    }

    /// What the bootloader will go by.
    ///
    /// # Errors
    /// `BootStateInvalid` when the file cannot be read or understood.
    fn read(&self) -> Result<BootState>;

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
}

/// The dialect that is in use on this device.
///
/// # Errors
/// The boot partition cannot be looked at.
pub fn detect(paths: &Paths) -> Result<Box<dyn Dialect>> {
    Err(absent(paths))
}

/// The dialect of U-Boot, whether its file is there or not.
///
/// # Errors
/// The boot partition cannot be looked at.
pub fn uboot(paths: &Paths) -> Result<Box<dyn Dialect>> {
    Err(absent(paths))
}

/// The dialect of GRUB.
///
/// # Errors
/// There is no `grubenv`, nor a `grub.cfg` of an old image, on the boot partition.
pub fn grub(paths: &Paths) -> Result<Box<dyn Dialect>> {
    Err(absent(paths))
}

/// The dialect of the balena bootloader, whether its file is there or not.
///
/// # Errors
/// The boot partition cannot be looked at.
pub fn balena(paths: &Paths) -> Result<Box<dyn Dialect>> {
    Err(absent(paths))
}

fn absent(paths: &Paths) -> Error {
    Error::new(Code::NotInThisBuild, format!("no dialect for {}", paths.root().display()))
}
