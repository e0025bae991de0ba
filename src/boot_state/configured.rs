//! GRUB before its selection moved to `grubenv` (meta-balena 2.77.0, "move variables from grub.cfg to grubenv"; its hooks and `grub.cfg` of 2.46.0): lines
//! of `grub.cfg` assign `resin_root_part` and `upgrade_available`, and hooks replace these lines. Only the count is in `grubenv`. What `grubenv`
//! has of the selection is loaded after these lines, and counts instead: then this is not the backend.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::change::{self, Step};
use super::env_file;
use super::envblock::{Damage, ROOT, UPGRADE};
use super::grub::Grub;
use super::variables::without_blanks;
use super::{Backend, BootState, Named, Variable, invalid, unwritable};
use crate::error::Result;
use crate::slot::{Root, Slot};
use crate::sys::file::{self, Folder};

#[derive(Debug)]
pub(super) struct Configured {
    config: PathBuf,
    /// `grubenv` has the count and other variables.
    grub: Grub,
}

impl Configured {
    pub(super) fn new(config: PathBuf, grub: Grub) -> Self {
        Configured { config, grub }
    }

    fn directory(&self) -> &Path {
        self.config.parent().unwrap_or(Path::new("/"))
    }

    fn name(&self) -> &OsStr {
        self.config.file_name().unwrap_or_default()
    }

    fn text(&self, directory: &Folder) -> io::Result<Vec<u8>> {
        file::current_content(directory, self.name())?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The configuration with this selection.
    fn with(&self, directory: &Folder, root: &Root, upgrade_available: bool) -> io::Result<Vec<u8>> {
        let (index, upgrade) = (root.index.to_string(), if upgrade_available { "1" } else { "0" });
        let new = assign(&self.text(directory)?, &[(ROOT, &index), (UPGRADE, upgrade)]);
        let is_read = assigned(&new, ROOT) == Some(index.as_bytes())
            && assigned(&new, UPGRADE) == Some(upgrade.as_bytes());
        if is_read { Ok(new) } else { Err(io::Error::other("it does not assign the selection once")) }
    }

    fn try_set(&self, root: &Root, upgrade_available: bool) -> io::Result<()> {
        let directory = Folder::open(self.directory())?;
        change::prepare(&directory, self.name())?;
        let (name, new) = (self.name().to_owned(), self.with(&directory, root, upgrade_available)?);
        // What cannot be written costs no count: where nothing selects the other root, only the count leads there.
        change::carry_out(&directory, &[Step::Rehearse(name.clone(), new.clone())])?;
        // A count at the limit reverses any selection: it goes before, and once more after, if GRUB has counted for the old one.
        let clear = || self.grub.clear_bootcount().map_err(io::Error::other);
        clear()?;
        change::carry_out(&directory, &[Step::Replace(name, new)])?;
        clear()
    }
}

impl Backend for Configured {
    fn name(&self) -> &'static str {
        "GRUB"
    }

    fn file(&self) -> &Path {
        &self.config
    }

    fn limit(&self) -> u32 {
        self.grub.limit()
    }

    fn is_exceeded(&self, bootcount: u32) -> bool {
        self.grub.is_exceeded(bootcount)
    }

    fn read(&self) -> Result<BootState> {
        let text = Folder::open_to_read(self.directory()).and_then(|directory| self.text(&directory));
        let text = text.map_err(|e| invalid(&self.config).because(e))?;
        let named = assigned(&text, ROOT).and_then(super::grub::index);
        Ok(BootState {
            selected: named.is_some(),
            damage: named.is_none().then_some(Damage::NoRoot),
            root: named.map_or(Named::Slot(Slot::B), Named::Index),
            bootcount: env_file::count(self.grub.count()?.as_deref(), self.grub.file()),
            upgrade_available: assigned(&text, UPGRADE) == Some(b"1"),
        })
    }

    fn may_be_root(&self, root: &Named) -> bool {
        self.grub.may_be_root(root)
    }

    fn set(&self, root: &Root, upgrade_available: bool) -> Result<()> {
        self.try_set(root, upgrade_available).map_err(|e| unwritable(&self.config).because(e))
    }

    fn clear_bootcount(&self) -> Result<()> {
        self.grub.clear_bootcount()
    }

    fn warnings(&self) -> Vec<(String, &'static str)> {
        self.grub.warnings()
    }

    fn variable(&self, name: &str) -> Result<Option<String>> {
        self.grub.variable(name)
    }

    fn set_variables(&self, changes: &[Variable<'_>]) -> Result<()> {
        self.grub.set_variables(changes)
    }
}

/// Whether the configuration keeps a selection: it assigns both variables, each once.
pub(super) fn has_selection(config: &[u8]) -> bool {
    [ROOT, UPGRADE].iter().all(|key| assigned(config, key).is_some())
}

/// The value of the one line that assigns `key`, with or without `set`; `None` also where there are several.
fn assigned<'c>(config: &'c [u8], key: &str) -> Option<&'c [u8]> {
    let mut found = config.split(|b| *b == b'\n').filter_map(|line| value(line, key));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

fn value<'l>(line: &'l [u8], key: &str) -> Option<&'l [u8]> {
    let line = without_blanks(line);
    let line = without_blanks(line.strip_prefix(b"set ").unwrap_or(line));
    line.strip_prefix(key.as_bytes())?.strip_prefix(b"=")
}

fn assign(config: &[u8], values: &[(&str, &str)]) -> Vec<u8> {
    let lines = config.split(|b| *b == b'\n').map(|line| {
        let new = values.iter().find(|(key, _)| value(line, key).is_some());
        new.map_or_else(|| line.to_vec(), |(key, value)| format!("{key}={value}").into_bytes())
    });
    lines.collect::<Vec<_>>().join(&b'\n')
}
