//! A file with an environment block, as GRUB and the balena bootloader read it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::change::{self, Step};
use super::envblock::{BOOTCOUNT, DECISION, Damage, EnvBlock, ROOT, Rewrite, UPGRADE, trim};
use super::variables::Variables;
use super::{Variable, invalid, unsettable, unwritable};
use crate::error::{Error, Result};
use crate::sys::file::{self, Folder};
use crate::sys::log::events;

#[derive(Debug, Clone)]
pub(super) struct EnvFile {
    path: PathBuf,
    reader: Reader,
}

/// How the bootloader gets at a variable.
pub(super) type Reader = fn(&Variables, &str) -> Option<Vec<u8>>;

pub(super) struct ReadBlock {
    variables: Variables,
    reader: Reader,
    pub(super) damage: Option<Damage>,
    /// What is written again. Of a damaged block the boot decision is as the bootloader reads it; of the others, which may be all right,
    /// as many are kept as copal can find.
    block: EnvBlock,
    bytes: Vec<u8>,
}

impl EnvFile {
    pub(super) fn new(path: PathBuf, reader: Reader) -> Self {
        EnvFile { path, reader }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn name(&self) -> OsString {
        self.path.file_name().unwrap_or_default().to_owned()
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    pub(super) fn read(&self) -> Result<Option<ReadBlock>> {
        let found = Folder::open_to_read(self.folder()).and_then(|folder| self.found(&folder, &self.name()));
        found.map_err(|e| invalid(&self.path).because(e))
    }

    fn found(&self, folder: &Folder, name: &OsStr) -> io::Result<Option<ReadBlock>> {
        Ok(file::current_content(folder, name)?.map(|bytes| ReadBlock::of(bytes, self.reader)))
    }

    /// A block that ends with a newline, as balenaOS v8.0.2 has it, is sound for a bootloader; `grub-editenv` sees no space for a change in it.
    pub(super) fn warnings(&self) -> Vec<(String, &'static str)> {
        let is_full = |found: ReadBlock| found.damage.is_none() && found.bytes.ends_with(b"\n");
        if !self.read().ok().flatten().is_some_and(is_full) {
            return Vec::new();
        }
        let text = format!("{} ends with a newline: grub-editenv cannot change it", self.path.display());
        vec![(text, "nothing is lost: the next change by copal ends the block as grub-editenv does")]
    }

    pub(super) fn select(&self, root: &str, upgrade_available: bool) -> Result<()> {
        let upgrade = if upgrade_available { "1" } else { "0" };
        let expected = [(BOOTCOUNT, "0"), (ROOT, root), (UPGRADE, upgrade)];
        self.change(&expected)
    }

    /// `None` for a variable that is not set, or empty. Of a damaged block the value that a repair keeps.
    pub(super) fn variable(&self, name: &str) -> Result<Option<String>> {
        let Some(found) = self.read()? else { return Ok(None) };
        Ok(found.block.get(name).filter(|value| !value.is_empty()).map(text))
    }

    pub(super) fn set_variables(&self, changes: &[Variable<'_>]) -> Result<()> {
        // First, since cleaning up an earlier change also writes.
        let possible = self.variables_step(self.read()?.as_ref(), changes).map(drop);
        let done = possible.and_then(|()| self.carry_out(&|found| self.variables_step(found, changes)));
        done.map_err(|e| self.cannot_set(changes, e))
    }

    fn variables_step(&self, found: Option<&ReadBlock>, changes: &[Variable<'_>]) -> io::Result<Step> {
        // A block without a selection makes GRUB choose root B.
        if found.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        if let Some((name, _)) = changes.iter().find(|(name, _)| DECISION.contains(name)) {
            return Err(io::Error::other(format!("{name} is part of the boot decision")));
        }
        let edit = |block: &mut EnvBlock| {
            changes.iter().all(|(name, value)| match value {
                Some(value) => block.set(name, value.as_bytes()),
                None => {
                    block.unset(name);
                    true
                }
            })
        };
        let step = self.step(found, &edit)?;
        // A repair leaves out variables that do not fit.
        let (Step::Replace(_, new) | Step::Sectors { new, .. }) = &step else { return Ok(step) };
        let block = EnvBlock::parse(new).map_err(|damage| io::Error::other(damage.to_string()))?;
        for (name, value) in changes {
            if block.get(name) != value.map(str::as_bytes) {
                return Err(io::Error::other(format!("the block has no space for {name} and its value")));
            }
        }
        Ok(step)
    }

    fn cannot_set(&self, changes: &[Variable<'_>], why: io::Error) -> Error {
        let names = changes.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        unsettable(&self.path, &names).because(why)
    }

    pub(super) fn clear_bootcount(&self) -> Result<()> {
        let Some(found) = self.read()? else { return Ok(()) };
        if matches!(found.get(BOOTCOUNT).as_deref(), None | Some(b"0")) {
            return Ok(());
        }
        self.change(&[(BOOTCOUNT, "0")])
    }

    fn change(&self, expected: &[(&str, &str)]) -> Result<()> {
        let edit =
            |block: &mut EnvBlock| expected.iter().all(|(key, value)| block.set(key, value.as_bytes()));
        let step = |found: Option<&ReadBlock>| {
            let step = self.step(found, &edit)?;
            self.read_back(&step, expected)?;
            Ok(step)
        };
        self.carry_out(&step).map_err(|e| unwritable(&self.path).because(e))
    }

    /// Refuses, before anything is written, a block of which the bootloader would read something else.
    fn read_back(&self, step: &Step, expected: &[(&str, &str)]) -> io::Result<()> {
        let (Step::Replace(_, new) | Step::Sectors { new, .. }) = step else { return Ok(()) };
        let read = ReadBlock::of(new.clone(), self.reader);
        if let Some(damage) = read.damage {
            return Err(io::Error::other(format!("it would be damaged: {damage}")));
        }
        match expected.iter().find(|(key, value)| read.get(key).as_deref() != Some(value.as_bytes())) {
            Some((key, value)) => {
                Err(io::Error::other(format!("the bootloader would not read {key}={value}")))
            }
            None => Ok(()),
        }
    }

    fn carry_out(&self, step: &dyn Fn(Option<&ReadBlock>) -> io::Result<Step>) -> io::Result<()> {
        let (folder, name) = (Folder::open(self.folder())?, self.name());
        change::prepare(&folder, &name)?;
        let found = self.found(&folder, &name)?;
        change::carry_out(&folder, &[step(found.as_ref())?])?;
        if let Some(damage) = found.and_then(|f| f.damage) {
            tracing::warn!(
                MESSAGE_ID = events::ENVIRONMENT_REPAIRED,
                COPAL_FILE = %self.path.display(),
                "{} was damaged ({damage}); rewritten, with the other variables that could be read",
                self.path.display()
            );
        }
        Ok(())
    }

    fn step(&self, found: Option<&ReadBlock>, edit: &Edit<'_>) -> io::Result<Step> {
        let mut block = found.map(|f| f.block.clone()).unwrap_or_default();
        if !edit(&mut block) {
            return Err(io::Error::other("it cannot hold this selection"));
        }
        match found {
            Some(ReadBlock { damage: None, bytes, .. }) => {
                if let Some(Rewrite { new, order }) = block.in_place(bytes).map_err(io::Error::other)? {
                    return Ok(Step::Sectors { name: self.name(), old: bytes.clone(), new, order });
                }
            }
            // A damaged block may hold more than a sound one can. Variables go before the boot decision.
            Some(_) => while block.print().is_err() && block.drop_last() {},
            None => {}
        }
        Ok(Step::Replace(self.name(), block.print().map_err(io::Error::other)?))
    }
}

/// Changes a block; false where the block cannot hold the change.
type Edit<'e> = dyn Fn(&mut EnvBlock) -> bool + 'e;

impl ReadBlock {
    fn of(bytes: Vec<u8>, reader: Reader) -> ReadBlock {
        let variables = Variables::of_block(&bytes).unwrap_or_default();
        let (block, damage) = match EnvBlock::parse(&bytes) {
            Ok(block) => (block, None),
            Err(damage) => {
                let mut block = EnvBlock::salvage(&bytes);
                for key in DECISION {
                    match reader(&variables, key) {
                        Some(value) => drop(block.set(key, &value)),
                        None => drop(block.unset(key)),
                    }
                }
                (block, Some(damage))
            }
        };
        ReadBlock { variables, reader, damage, block, bytes }
    }

    /// As the bootloader reads it.
    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        (self.reader)(&self.variables, key)
    }

    /// Whether the file was made for selections, whatever can be read of it now.
    pub(super) fn is_for_selections(&self) -> bool {
        EnvBlock::salvage(&self.bytes).get(UPGRADE).is_some()
    }
}

/// A decimal count. The bootloaders take any other text for 0.
pub(super) fn count(value: Option<&[u8]>, file: &Path) -> u32 {
    let Some(text) = value.filter(|text| !text.is_empty()) else { return 0 };
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        tracing::warn!("{}: the bootcount is not a number and counts as 0", file.display());
        0
    })
}

/// For values that mean nothing to copal.
pub(super) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(trim(value)).into_owned()
}
