//! Every refusal before the first write to the internal boot partition.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::contents::{Action, Contents, Files, Item};
use super::deploy::obsolete;
use crate::boot_files::{Budgets, Destination, Walk, failed, refused_by_fat};
use crate::error::{Code, Error, Result};
use crate::sys::file::{FileKind, Folder};

/// Bytes kept free for the receipt.
const RECEIPT: u64 = 64 << 10;

impl Files {
    /// Checks paths, names and free space. Writes nothing.
    pub fn check(&self, dest: &Destination) -> Result<()> {
        self.count(dest).and_then(|budgets| budgets.check()).map_err(Error::after_write)
    }

    fn count<'a>(&self, dest: &'a Destination) -> Result<Budgets<'a>> {
        let mut budgets = Budgets::of(dest, 0);
        for item in &self.items {
            check_names(dest, item)?;
            Walked { dest, item, new: BTreeSet::new() }.count(&mut budgets)?;
        }
        Ok(budgets)
    }
}

impl Contents {
    /// As [`Files::check`]. `log` bytes are kept free for a log file.
    pub fn check(&self, dest: &Destination, log: u64) -> Result<()> {
        self.check_all(dest, log).map_err(Error::after_write)
    }

    fn check_all(&self, dest: &Destination, log: u64) -> Result<()> {
        let mut budgets = self.files.count(dest)?;
        self.count_own(&mut budgets, log)?;
        budgets.check()
    }

    /// `config.json`, the receipt and the log, all in the top folder.
    fn count_own(&self, budgets: &mut Budgets<'_>, log: u64) -> Result<()> {
        let top = Path::new("");
        let config = self.config_json_name();
        // It is formatted again, and grows while the device registers itself.
        let size = self.config_json_size.saturating_mul(2).saturating_add(4096);
        let root = budgets.dest().root();
        for (name, size) in [
            (config, size),
            (OsStr::new("flash-receipt.json"), RECEIPT),
            (OsStr::new("migration_00000000T0000"), log),
        ] {
            let old = match root.entry(name).map_err(|e| failed(root, name, e))? {
                None => None,
                Some(e) if e.kind == FileKind::File => Some(e.size),
                Some(_) => return Err(wrong_kind(root, name)),
            };
            let budget = budgets.at(top)?;
            if old.is_none() {
                budget.name(top, name);
            }
            budget.folder(top);
            budget.replace(old.unwrap_or(0), size);
        }
        Ok(())
    }
}

fn wrong_kind(folder: &Folder, name: &OsStr) -> Error {
    let path = folder.path().join(name);
    Error::new(Code::BootNameInvalid, format!("{} is in the way: it is not a file", path.display()))
        .object(path.display())
}

struct Walked<'a> {
    dest: &'a Destination,
    item: &'a Item,
    /// Folders that are missing, or will be replaced.
    new: BTreeSet<PathBuf>,
}

impl Walked<'_> {
    /// Whether what is in the way of `path` will be removed: only inside a replaced folder.
    fn gives_way(&self, path: &Path) -> bool {
        self.item.action == Action::ReplaceFolder && path != self.item.destination
    }

    fn count(mut self, budgets: &mut Budgets<'_>) -> Result<()> {
        for folder in &self.item.folders {
            self.count_folder(folder, budgets)?;
        }
        for file in &self.item.files {
            self.count_file(&file.to, file.size, budgets)?;
        }
        if self.item.action == Action::ReplaceFolder && !self.new.contains(&self.item.destination) {
            let budget = budgets.at(&self.item.destination)?;
            for (_, entry) in obsolete(self.dest, self.item, |name| self.dest.root().fold(name))? {
                budget.free(entry.size);
            }
        }
        Ok(())
    }

    fn count_folder(&mut self, path: &Path, budgets: &mut Budgets<'_>) -> Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let there = !self.new.contains(parent)
            && match self.dest.walk(path) {
                Ok(Walk::There(_)) => true,
                Ok(Walk::Missing) => false,
                Err(_) if self.gives_way(path) => false,
                Err(e) => return Err(e),
            };
        let on = self.existing(path);
        let budget = budgets.at(&on)?;
        if !there {
            self.new.insert(path.to_owned());
            budget.name(parent, path.file_name().unwrap_or_default());
            budget.take(1);
            *budget.folder(path) += 2;
        }
        Ok(())
    }

    /// The innermost folder on the way to `path` that exists and stays.
    fn existing(&self, path: &Path) -> PathBuf {
        let inner = path
            .ancestors()
            .find(|p| !self.new.contains(*p) && matches!(self.dest.walk(p), Ok(Walk::There(_))));
        inner.unwrap_or(Path::new("")).to_owned()
    }

    fn count_file(&self, path: &Path, size: u64, budgets: &mut Budgets<'_>) -> Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().unwrap_or_default();
        let mut old = None;
        if !self.new.contains(parent)
            && let (Walk::There(folder), name) = self.dest.parent(path)?
        {
            match folder.entry(name).map_err(|e| failed(&folder, name, e))? {
                None => {}
                Some(e) if e.kind == FileKind::File => old = Some(e.size),
                Some(_) if self.gives_way(path) => {}
                Some(e) if e.kind == FileKind::Link => return Err(self.dest.escapes(path)),
                Some(_) => return Err(wrong_kind(&folder, name)),
            }
        }
        let on = self.existing(parent);
        let budget = budgets.at(&on)?;
        if old.is_none() {
            budget.name(parent, name);
        }
        budget.folder(parent);
        budget.replace(old.unwrap_or(0), size);
        Ok(())
    }
}

/// Refuses names that FAT cannot hold, and names that FAT takes for one.
fn check_names(dest: &Destination, item: &Item) -> Result<()> {
    let on = dest.nearest(item.destination.parent().unwrap_or(Path::new("")))?;
    if !on.is_fat() {
        return Ok(());
    }
    let mut seen: BTreeMap<Vec<OsString>, &Path> = BTreeMap::new();
    for path in item.folders.iter().map(PathBuf::as_path).chain(item.files.iter().map(|f| f.to.as_path())) {
        let invalid = |what: &str| {
            Error::new(
                Code::BootNameInvalid,
                format!("cannot copy {} to a FAT file system: {what}", path.display()),
            )
            .object(path.display())
        };
        if let Some(why) = path.iter().find_map(refused_by_fat) {
            return Err(invalid(why));
        }
        let folded: Vec<_> = path.iter().map(|part| on.fold(part)).collect();
        if let Some(other) = seen.insert(folded, path) {
            return Err(invalid(&format!("its name differs from {} in case only", other.display())));
        }
    }
    Ok(())
}
