//! The balena bootloader: a small system that starts the real one by kexec (meta-balena, `initrdscripts/files/abroot`).
//!
//! While the selection is on trial it adds 1 to the boot count. From 3 on it falls back to the other root, and restores that root's
//! kernel override. It reads the block with `grub-editenv`; without a root in it, it finds none.

use std::path::{Path, PathBuf};

use super::env_file::{self, EnvFile};
use super::envblock::{BOOTCOUNT, Damage, ROOT, UPGRADE};
use super::variables::Variables;
use super::{Backend, BootState, Named, Variable};
use crate::error::Result;
use crate::slot::{Root, Slot};

/// At the top of the boot partition.
pub(super) const BOOTENV_FILE: &str = "bootenv";

#[derive(Debug)]
pub(super) struct Balena {
    file: EnvFile,
}

impl Balena {
    pub(super) fn new(path: PathBuf) -> Self {
        Balena { file: EnvFile::new(path, Variables::listed) }
    }
}

impl Backend for Balena {
    fn name(&self) -> &'static str {
        "balena bootloader"
    }

    fn file(&self) -> &Path {
        self.file.path()
    }

    fn limit(&self) -> u32 {
        3
    }

    fn read(&self) -> Result<BootState> {
        // Without the file the small system keeps running, from the first root.
        let Some(found) = self.file.read()? else { return Ok(BootState::unselected(Named::Slot(Slot::A))) };
        let (root, selected) = match found.get(ROOT).as_deref() {
            Some(b"A") => (Named::Slot(Slot::A), true),
            Some(b"B") => (Named::Slot(Slot::B), true),
            other => (Named::Other(env_file::text(other.unwrap_or_default())), false),
        };
        Ok(BootState {
            root,
            bootcount: env_file::count(found.get(BOOTCOUNT).as_deref(), self.file()),
            upgrade_available: found.get(UPGRADE).as_deref() == Some(b"1"),
            selected,
            damage: found.damage.or((!selected).then_some(Damage::NoRoot)),
        })
    }

    fn set(&self, root: &Root, upgrade_available: bool) -> Result<()> {
        self.file.select(root.slot.letter(), upgrade_available)
    }

    fn warnings(&self) -> Vec<(String, &'static str)> {
        self.file.warnings()
    }

    fn clear_bootcount(&self) -> Result<()> {
        self.file.clear_bootcount()
    }

    fn variable(&self, name: &str) -> Result<Option<String>> {
        self.file.variable(name)
    }

    fn set_variables(&self, changes: &[Variable<'_>]) -> Result<()> {
        self.file.set_variables(changes)
    }
}
