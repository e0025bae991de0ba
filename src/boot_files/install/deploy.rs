//! Writes the boot files. Each file is complete, old or new, at every instant; a repeated run completes an interrupted one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use super::contents::{Action, Contents, Files, Item, SourceFile, unreadable};
use crate::boot_files::{Deployed, Destination, Walk, failed};
use crate::boot_state::UENV_FILE;
use crate::boot_state::uenv::Uenv;
use crate::config::config_json::ConfigJson;
use crate::error::{Code, Error, Result};
use crate::sys::file::{self, Content, FileKind, Folder, FolderEntry, Outcome};

/// More than any selection for U-Boot has.
const MAX_SELECTION_BYTES: usize = 1 << 20;

impl Files {
    /// Copies every item, in order, then reads everything back from the disk.
    pub fn deploy(&self, dest: &Destination) -> Result<Deployed> {
        self.deploy_all(dest).map_err(Error::after_write)
    }

    fn deploy_all(&self, dest: &Destination) -> Result<Deployed> {
        let mut job = Deployment { files: self, dest, swept: BTreeSet::new(), done: Deployed::default() };
        job.sweep(Path::new(""))?;
        for item in &self.items {
            tracing::info!("{}: {item}", dest.root().path().display());
            job.item(item)?;
        }
        self.verify(dest)?;
        Ok(job.done)
    }

    fn open(&self, file: &SourceFile) -> Result<std::fs::File> {
        let path = self.source.join(&file.from);
        let open = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&path);
        let source = open.map_err(|e| unreadable(&path, e))?;
        match source.metadata() {
            Ok(meta) if meta.is_file() => Ok(source),
            Ok(_) => Err(unreadable(&path, std::io::Error::other("no longer a file"))),
            Err(e) => Err(unreadable(&path, e)),
        }
    }

    /// U-Boot's selection without the carriage returns at the ends of its lines: U-Boot takes them for parts of the values. `None` for any other
    /// file, and without such returns.
    fn without_returns(&self, file: &SourceFile, source: &std::fs::File) -> Result<Option<Vec<u8>>> {
        if file.to != Path::new(UENV_FILE) {
            return Ok(None);
        }
        let failed = |e| unreadable(&self.source.join(&file.from), e);
        // As it is now: it may have changed since the plan.
        let size = source.metadata().map_err(failed)?.len();
        let Some(size) = usize::try_from(size).ok().filter(|size| *size <= MAX_SELECTION_BYTES) else {
            return Ok(None);
        };
        let mut bytes = vec![0; size];
        // The position stays: without returns, the file itself is copied.
        source.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let mut selection = Uenv::parse(&bytes);
        Ok(selection.drop_returns().then(|| selection.print()))
    }

    /// Compares the medium with the source; where two items write one file, with the later item.
    fn verify(&self, dest: &Destination) -> Result<()> {
        let files = self.items.iter().flat_map(|i| &i.files);
        let last: BTreeMap<Vec<OsString>, &SourceFile> =
            files.map(|f| (f.to.iter().map(|part| dest.root().fold(part)).collect(), f)).collect();
        for file in last.values() {
            let source = self.open(file)?;
            let (parent, name) = dest.parent(&file.to)?;
            let same = match &parent {
                Walk::There(folder) => {
                    let plain = self.without_returns(file, &source)?;
                    let content = plain.as_deref().map_or(Content::File(&source), Content::Bytes);
                    folder.holds(name, &content).map_err(|e| failed(folder, name, e))?
                }
                Walk::Missing => false,
            };
            if !same {
                return Err(differs(&dest.root().path().join(&file.to)));
            }
        }
        Ok(())
    }
}

impl Contents {
    /// Copies the files. Without `config.json`: see [`deploy_config_json`](Self::deploy_config_json).
    pub fn deploy(&self, dest: &Destination) -> Result<Deployed> {
        self.files.deploy(dest)
    }

    /// Reads the owner's `config.json` again, and copies it without its `installer` member.
    pub fn deploy_config_json(&self, dest: &Destination) -> Result<()> {
        // A torn read is repeated in there.
        let config = ConfigJson::load(&self.config_json).map_err(|e| {
            e.after_write()
                .with_hint("put a valid config.json on the medium's boot partition and flash again")
        })?;
        tracing::info!("internal boot partition: copy {}, without `installer`", self.config_json.display());
        put(dest, self.config_json_name(), &config.for_internal_disk())
    }
}

fn differs(path: &Path) -> Error {
    let what = format!("{} differs from what was written: the medium returned other data", path.display());
    Error::new(Code::BootCopyFailed, what).object(path.display())
}

/// Writes a file into the top folder (`config.json`, the receipt, a log), and reads it back from the medium.
pub fn put(dest: &Destination, name: &OsStr, bytes: &[u8]) -> Result<()> {
    put_checked(dest, name, bytes).map_err(Error::after_write)
}

fn put_checked(dest: &Destination, name: &OsStr, bytes: &[u8]) -> Result<()> {
    let plain = Path::new(name).file_name() == Some(name);
    if !plain {
        return Err(dest.escapes(Path::new(name)));
    }
    let (root, content) = (dest.root(), Content::Bytes(bytes));
    file::replace(root, name, &content).map_err(|e| failed(root, name, e))?;
    match root.holds(name, &content) {
        Ok(true) => Ok(()),
        Ok(false) => Err(differs(&root.path().join(name))),
        Err(e) => Err(failed(root, name, e)),
    }
}

struct Deployment<'a> {
    files: &'a Files,
    dest: &'a Destination,
    swept: BTreeSet<PathBuf>,
    done: Deployed,
}

impl Deployment<'_> {
    /// Removes temporary files of an earlier run, before anything in the folder is replaced.
    fn sweep(&mut self, path: &Path) -> Result<()> {
        if self.swept.insert(path.to_owned())
            && let Walk::There(folder) = self.dest.walk(path)?
        {
            file::sweep(&folder).map_err(|e| failed(&folder, OsStr::new("."), e))?;
        }
        Ok(())
    }

    fn item(&mut self, item: &Item) -> Result<()> {
        for path in &item.folders {
            self.make_way(item, path, FileKind::Folder)?;
            self.dest.make(path)?;
            self.sweep(path)?;
        }
        for file in &item.files {
            self.make_way(item, &file.to, FileKind::File)?;
            let source = self.files.open(file)?;
            let (Walk::There(folder), name) = self.dest.parent(&file.to)? else {
                return Err(differs(&self.dest.root().path().join(&file.to)));
            };
            let plain = self.files.without_returns(file, &source)?;
            if plain.is_some() {
                tracing::warn!(
                    "{UENV_FILE}: U-Boot takes the carriage returns for parts of the values; copied without them"
                );
            }
            let content = plain.as_deref().map_or(Content::File(&source), Content::Bytes);
            match file::replace(&folder, name, &content).map_err(|e| failed(&folder, name, e))? {
                Outcome::Written => self.done.written += 1,
                Outcome::Unchanged => self.done.unchanged += 1,
            }
        }
        if item.action == Action::ReplaceFolder {
            // Innermost first, so that each folder is empty before it is removed.
            for (path, _) in obsolete(self.dest, item, OsStr::to_owned)? {
                if let (Walk::There(folder), name) = self.dest.parent(&path)? {
                    if is_wanted(&folder, name, item, &path).map_err(|e| failed(&folder, name, e))? {
                        continue;
                    }
                    tracing::info!("internal boot partition: remove {}", path.display());
                    remove_any(&folder, name).map_err(|e| failed(&folder, name, e))?;
                    self.done.removed += 1;
                }
            }
        }
        Ok(())
    }

    /// In a replaced folder, removes an entry of another kind that has the name.
    fn make_way(&mut self, item: &Item, path: &Path, wanted: FileKind) -> Result<()> {
        if item.action != Action::ReplaceFolder || path == item.destination {
            return Ok(());
        }
        let (Walk::There(folder), name) = self.dest.parent(path)? else { return Ok(()) };
        let there = folder.entry(name).map_err(|e| failed(&folder, name, e))?;
        if there.is_some_and(|e| e.kind != wanted) {
            remove_all(&folder, name).map_err(|e| failed(&folder, name, e))?;
            self.done.removed += 1;
        }
        // vfat does not find one of two names that differ in the case of accented letters (CAFÉ, café), but cannot hold both.
        let names = folder.names().map_err(|e| failed(&folder, name, e))?;
        for other in names.iter().filter(|other| *other != name && folder.same_name(other, name)) {
            if !folder.is_one_file(other, name).map_err(|e| failed(&folder, other, e))? {
                remove_all(&folder, other).map_err(|e| failed(&folder, other, e))?;
                self.done.removed += 1;
            }
        }
        Ok(())
    }
}

/// Whether `path` is a file of the item under another spelling. Which spellings are one depends on the kernel's character set.
fn is_wanted(folder: &Folder, name: &OsStr, item: &Item, path: &Path) -> std::io::Result<bool> {
    let beside = |p: &&Path| p.parent() == path.parent();
    let wanted = item.folders.iter().map(PathBuf::as_path).chain(item.files.iter().map(|f| f.to.as_path()));
    for other in wanted.filter(beside).filter_map(Path::file_name).filter(|_| folder.is_fat()) {
        if folder.is_one_file(name, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Keeps a folder that is not empty.
fn remove_any(folder: &Folder, name: &OsStr) -> std::io::Result<()> {
    match folder.entry(name)?.map(|e| e.kind) {
        None => Ok(()),
        Some(FileKind::Folder) => {
            match file::sweep(&folder.enter(name)?).and_then(|_| file::remove_folder(folder, name)) {
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::DirectoryNotEmpty | std::io::ErrorKind::ResourceBusy
                    ) =>
                {
                    tracing::warn!("keeping {}: {e}", folder.path().join(name).display());
                    Ok(())
                }
                other => other,
            }
        }
        Some(FileKind::File) => file::remove(folder, name).map(|_| ()),
        Some(FileKind::Link | FileKind::Other) => {
            folder.unlink(name)?;
            folder.sync_folder()?;
            folder.flush()
        }
    }
}

fn remove_all(folder: &Folder, name: &OsStr) -> std::io::Result<()> {
    if folder.entry(name)?.is_some_and(|e| e.kind == FileKind::Folder) {
        let inner = folder.enter(name)?;
        for below in inner.names()?.iter().filter(|n| !file::is_temporary(n)) {
            remove_all(&inner, below)?;
        }
    }
    remove_any(folder, name)
}

/// Files and folders that a replaced folder has and its source lacks, innermost first; names are compared after `fold`. Temporary files
/// stay: one may share its clusters with another file, which its removal would destroy.
pub(super) fn obsolete(
    dest: &Destination,
    item: &Item,
    fold: impl Fn(&OsStr) -> OsString,
) -> Result<Vec<(PathBuf, FolderEntry)>> {
    let fold = |path: &Path| -> Vec<OsString> { path.iter().map(&fold).collect() };
    let wanted: BTreeSet<_> =
        item.folders.iter().map(|p| fold(p)).chain(item.files.iter().map(|f| fold(&f.to))).collect();
    let mut found = Vec::new();
    let Walk::There(top) = dest.walk(&item.destination)? else { return Ok(found) };
    let mut todo = vec![(item.destination.clone(), top)];
    while let Some((path, folder)) = todo.pop() {
        let here = |e| failed(&folder, OsStr::new("."), e);
        for name in folder.names().map_err(here)?.into_iter().filter(|n| !file::is_temporary(n)) {
            let Some(entry) = folder.entry(&name).map_err(here)? else { continue };
            let below = path.join(&name);
            if entry.kind == FileKind::Folder {
                let inner = folder.enter(&name).map_err(here)?;
                if inner.dev() != folder.dev() {
                    return Err(dest.escapes(&below));
                }
                todo.push((below.clone(), inner));
            }
            if !wanted.contains(&fold(&below)) {
                found.push((below, entry));
            }
        }
    }
    found.sort_by_key(|(path, _)| std::cmp::Reverse(path.components().count()));
    Ok(found)
}
