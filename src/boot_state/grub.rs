//! GRUB (meta-balena, `recipes-bsp/grub`): its configuration compares the partition number with 2, and chooses root B for any other
//! value and for none; on an encrypted disk, root A. While the selection is on trial it counts 0, 1, 2, and falls back to the other root at 2.
//!
//! Legacy images have no selection in `grubenv`: `grub.cfg` has the label of the root, and GRUB counts nothing.

use std::ffi::OsStr;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::change::{self, Step};
use super::env_file::{self, EnvFile};
use super::envblock::{BOOTCOUNT, Damage, ROOT, UPGRADE};
use super::{Backend, BootState, Named, Variable, invalid, unwritable};
use crate::error::Result;
use crate::slot::{Root, Slot};
use crate::sys::file::{self, Folder};

pub(super) const GRUBENV_FILE: &str = "grubenv";
pub(super) const GRUB_CFG_FILE: &str = "grub.cfg";

/// Partition numbers of root A and root B.
const ENCRYPTED_ROOTS: RangeInclusive<u32> = 3..=4;

#[derive(Debug)]
pub(super) struct Grub {
    file: EnvFile,
    /// What its configuration takes where no root is selected.
    default: Slot,
}

impl Grub {
    pub(super) fn new(path: PathBuf, default: Slot) -> Self {
        Grub { file: EnvFile::new(path, |read, key| read.get(key).map(<[u8]>::to_vec)), default }
    }

    pub(super) fn count(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.file.read()?.and_then(|found| found.get(BOOTCOUNT)))
    }

    /// Images have it since 2.77.0; before, `grub.cfg` had it.
    pub(super) fn has_selection(&self) -> Result<bool> {
        Ok(self.file.read()?.is_some_and(|found| found.is_for_selections()))
    }
}

impl Backend for Grub {
    fn name(&self) -> &'static str {
        "GRUB"
    }

    fn file(&self) -> &Path {
        self.file.path()
    }

    fn limit(&self) -> u32 {
        2
    }

    /// The configuration compares with 2 only.
    fn is_exceeded(&self, bootcount: u32) -> bool {
        bootcount == self.limit()
    }

    fn read(&self) -> Result<BootState> {
        let default = Named::Slot(self.default);
        let Some(found) = self.file.read()? else {
            return Ok(BootState { damage: Some(Damage::Missing), ..BootState::unselected(default) });
        };
        let named = found.get(ROOT).and_then(|value| index(&value));
        // The configuration of an encrypted disk compares with 4 (and, for the fallback, with 3): images come with 2, which means root A there.
        let is_default = |index: &u32| self.default == Slot::A && !ENCRYPTED_ROOTS.contains(index);
        Ok(BootState {
            selected: named.is_some(),
            damage: found.damage.or(named.is_none().then_some(Damage::NoRoot)),
            root: named.filter(|index| !is_default(index)).map_or(default, Named::Index),
            bootcount: env_file::count(found.get(BOOTCOUNT).as_deref(), self.file()),
            upgrade_available: found.get(UPGRADE).as_deref() == Some(b"1"),
        })
    }

    /// On an encrypted disk the roots are one further.
    fn may_be_root(&self, root: &Named) -> bool {
        matches!(root, Named::Slot(_) | Named::Index(2..=4))
    }

    fn set(&self, root: &Root, upgrade_available: bool) -> Result<()> {
        self.file.select(&root.index.to_string(), upgrade_available)
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

/// The number of a partition. The configuration compares texts: `03` is not `3`.
pub(super) fn index(value: &[u8]) -> Option<u32> {
    let index: u32 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (index.to_string().as_bytes() == value).then_some(index)
}

#[derive(Debug)]
pub(super) struct Legacy {
    config: PathBuf,
}

impl Legacy {
    pub(super) fn new(config: PathBuf) -> Self {
        Legacy { config }
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        file::current_content(&Folder::open_to_read(self.folder())?, self.config_name())?
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn folder(&self) -> &Path {
        self.config.parent().unwrap_or(Path::new("/"))
    }

    fn config_name(&self) -> &OsStr {
        self.config.file_name().unwrap_or_default()
    }

    fn try_set(&self, slot: Slot) -> io::Result<()> {
        let folder = Folder::open(self.folder())?;
        change::prepare(&folder, self.config_name())?;
        change::carry_out(&folder, &[self.step(slot)?])
    }

    fn step(&self, slot: Slot) -> io::Result<Step> {
        let old = self.text()?;
        if labels(&old).next().is_none() {
            return Err(io::Error::other("it has no label of a root partition"));
        }
        Ok(Step::Replace(self.config_name().to_owned(), with_slot(&old, slot)))
    }
}

impl Backend for Legacy {
    fn name(&self) -> &'static str {
        "GRUB without rollback"
    }

    fn file(&self) -> &Path {
        &self.config
    }

    fn counts(&self) -> bool {
        false
    }

    fn limit(&self) -> u32 {
        0
    }

    fn read(&self) -> Result<BootState> {
        let text = self.text().map_err(|e| invalid(&self.config).because(e))?;
        let mut slots: Vec<Slot> = labels(&text).map(|(_, slot)| slot).collect();
        slots.dedup();
        match slots.as_slice() {
            [slot] => Ok(BootState::untouched(Named::Slot(*slot))),
            [] => Ok(BootState::untouched(Named::Other(String::new()))),
            _ => Ok(BootState::untouched(Named::Other("several labels".into()))),
        }
    }

    fn set(&self, root: &Root, _: bool) -> Result<()> {
        self.try_set(root.slot).map_err(|e| unwritable(&self.config).because(e))
    }

    fn clear_bootcount(&self) -> Result<()> {
        Ok(())
    }
}

/// By its configuration (meta-balena, `grub.cfg_internal_template` and `grub.cfg_internal_luks_template`).
pub(super) fn default_root(config: &[u8]) -> Slot {
    if contains(config, "set balena_root=resin-rootA") { Slot::A } else { Slot::B }
}

pub(super) fn contains(config: &[u8], text: &str) -> bool {
    config.windows(text.len()).any(|w| w == text.as_bytes())
}

const LABELS: [&[u8]; 2] = [b"resin-root", b"balena-root"];

/// The slots that root labels in `text` name, and the position of their letter.
pub(super) fn labels(text: &[u8]) -> impl Iterator<Item = (usize, Slot)> {
    (0..text.len()).filter_map(move |at| {
        let rest = text.get(at..)?;
        let label = LABELS.iter().find(|label| rest.starts_with(label))?;
        let slot = match rest.get(label.len())? {
            b'A' => Slot::A,
            b'B' => Slot::B,
            _ => return None,
        };
        let word = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        let ends = rest.get(label.len() + 1).is_none_or(|b| !word(b));
        ends.then_some((at + label.len(), slot))
    })
}

fn with_slot(text: &[u8], slot: Slot) -> Vec<u8> {
    let mut new = text.to_vec();
    for (at, _) in labels(text) {
        if let (Some(letter), Some(with)) = (new.get_mut(at), slot.letter().bytes().next()) {
            *letter = with;
        }
    }
    new
}
