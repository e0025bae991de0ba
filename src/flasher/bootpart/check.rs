//! Everything that can be refused before the first byte goes to the internal boot partition.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::contents::{Action, Contents, Item};
use super::deploy::obsolete;
use super::destination::{Destination, Walk, failed};
use super::space::{Budget, entries_of};
use crate::error::{Code, Error, Result};
use crate::sys::file::{Folder, Kind, Steps};

/// Kept free for the receipt.
const RECEIPT: u64 = 64 << 10;

impl Contents {
    /// Checks paths, names and room on the mounted internal boot partition, which is not changed. `log` bytes are kept free for
    /// a log file.
    ///
    /// # Errors
    /// `BootPathEscapes`, `BootNameInvalid`, `BootPartitionFull`, or `BootCopyFailed` when it cannot be read. All of them come
    /// after the image has been written.
    pub fn check(&self, dest: &Destination, log: u64) -> Result<()> {
        let mut budgets = Budgets { dest, by_device: BTreeMap::new() };
        for item in &self.items {
            check_names(dest, item)?;
            Walked { dest, item, new: BTreeSet::new() }.count(&mut budgets)?;
        }
        self.count_own(&mut budgets, log)?;
        budgets.check()
    }

    /// `config.json`, the receipt, the log: all in the top folder.
    fn count_own(&self, budgets: &mut Budgets<'_>, log: u64) -> Result<()> {
        let top = Path::new("");
        let config = self.config_json_name();
        // It is laid out anew and grows while the device registers itself.
        let size = self.config_json_size.saturating_mul(2).saturating_add(4096);
        let root = budgets.dest.root();
        for (name, size) in [
            (config, size),
            (OsStr::new("flash-receipt.json"), RECEIPT),
            (OsStr::new("migration_00000000T0000"), log),
        ] {
            let old = match root.entry(name).map_err(|e| failed(root, name, e))? {
                None => None,
                Some(e) if e.kind == Kind::File => Some(e.size),
                Some(_) => return Err(wrong_kind(root, name)),
            };
            let budget = budgets.of(top)?;
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
        .after_write()
}

/// One budget for each file system.
struct Budgets<'a> {
    dest: &'a Destination,
    by_device: BTreeMap<u64, (PathBuf, Budget)>,
}

impl Budgets<'_> {
    /// That of the file system where the folder `path` is or will be.
    fn of(&mut self, path: &Path) -> Result<&mut Budget> {
        let folder = self.dest.nearest(path)?;
        let space = folder.space().map_err(|e| failed(&folder, OsStr::new("."), e))?;
        let new = || (folder.path().to_owned(), Budget::new(space));
        Ok(&mut self.by_device.entry(folder.dev()).or_insert_with(new).1)
    }

    fn check(&self) -> Result<()> {
        for (place, budget) in self.by_device.values() {
            budget.check(place)?;
        }
        let root = self.dest.root();
        let Some((_, budget)) = self.by_device.get(&root.dev()) else { return Ok(()) };
        let read = |e| failed(root, OsStr::new("."), e);
        let Some(most) = root.top_entries().map_err(read)? else { return Ok(()) };
        // The label is an entry, too.
        let used: u64 = 1 + root.names().map_err(read)?.iter().map(|n| entries_of(n)).sum::<u64>();
        let new = budget.new_entries(Path::new(""));
        if used + new <= most {
            return Ok(());
        }
        let place = root.path().display();
        let what = format!(
            "cannot copy the boot files to {place}: its top folder takes {most} entries, {used} are used, {new} are needed"
        );
        Err(Error::new(Code::BootPartitionFull, what).object(place).after_write())
    }
}

/// An item against what is there.
struct Walked<'a> {
    dest: &'a Destination,
    item: &'a Item,
    /// Folders that are not there, or make way for the new one.
    new: BTreeSet<PathBuf>,
}

impl Walked<'_> {
    /// Whether what is in the way of `path` will be removed: only inside a folder that is replaced.
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
            let budget = budgets.of(&self.item.destination)?;
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
        let budget = budgets.of(&on)?;
        if !there {
            self.new.insert(path.to_owned());
            budget.name(parent, path.file_name().unwrap_or_default());
            // Its own two entries.
            budget.take(1);
            *budget.folder(path) += 2;
        }
        Ok(())
    }

    /// The innermost folder on the way to `path` that is there and stays.
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
                Some(e) if e.kind == Kind::File => old = Some(e.size),
                Some(_) if self.gives_way(path) => {}
                Some(e) if e.kind == Kind::Link => return Err(self.dest.escapes(path)),
                Some(_) => return Err(wrong_kind(&folder, name)),
            }
        }
        let on = self.existing(parent);
        let budget = budgets.of(&on)?;
        if old.is_none() {
            budget.name(parent, name);
        }
        budget.folder(parent);
        budget.replace(old.unwrap_or(0), size);
        Ok(())
    }
}

/// Names that FAT does not take, and names that are one to it.
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
            .after_write()
        };
        if let Some(why) = path.iter().find_map(refused_by_fat) {
            return Err(invalid(why));
        }
        let folded: Vec<_> = path.iter().map(|part| on.fold(part)).collect();
        if let Some(other) = seen.insert(folded, path) {
            return Err(invalid(&format!("only case tells it from {}", other.display())));
        }
    }
    Ok(())
}

/// Why FAT, as Linux has it, does not take a name (`vfat_is_used_badchars` and `vfat_striptail_len` of `fs/fat/namei_vfat.c`).
fn refused_by_fat(name: &OsStr) -> Option<&'static str> {
    let text = name.to_string_lossy();
    match &*text {
        t if t.chars().any(|c| c < ' ' || "*?<>|\":\\".contains(c)) => {
            Some("its name has one of the signs * ? < > | \" : \\")
        }
        t if t.ends_with('.') => Some("its name ends with a dot"),
        t if t.ends_with(' ') => Some("its name ends with a blank"),
        t if t.encode_utf16().count() > 255 => Some("its name is too long"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_fat_does_not_take() {
        for name in ["a:b", "what?", "a\\b", "tab\t", "dot.", "blank ", "\"", &"x".repeat(256)] {
            assert!(refused_by_fat(OsStr::new(name)).is_some(), "{name}");
        }
        for name in [".hidden", "a b.txt", "ä", "x+y=z,[1];", &"x".repeat(255)] {
            assert!(refused_by_fat(OsStr::new(name)).is_none(), "{name}");
        }
    }
}
