//! Copies files from the running release's boot folder into the boot folder of a new release, which is not current yet.
//!
//! The running release's folder is only read. A file of the new release keeps its name, unless the owner has pinned it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Key, content};
use crate::error::{Code, Error};
use crate::sys::file::{self, Content, FileKind, Folder};
use crate::sys::log::events;

/// Limits in bytes: of a device tree, and of the other files, which may be firmware.
pub(super) const MAX_TREE_BYTES: u64 = 8 << 20;
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Bytes that stay free in the slot, for the engine and the links.
const RESERVED_BYTES: u64 = 256 << 10;

/// Why a file is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A setting names it; `counts`: the update must not lose it.
    Named { key: Key, counts: bool },
    /// The board's configuration lists it.
    Board,
    /// The owner has pinned it.
    Pin,
}

impl Origin {
    const fn as_str(self) -> &'static str {
        match self {
            Origin::Named { key, .. } => key.as_str(),
            Origin::Board => "CARRY_BOOT",
            Origin::Pin => "keep",
        }
    }

    const fn limit(self) -> u64 {
        match self {
            Origin::Named { .. } => MAX_TREE_BYTES,
            Origin::Board | Origin::Pin => MAX_FILE_BYTES,
        }
    }

    /// Whether the bootloader may look for the file.
    pub(super) const fn is_tree_that_counts(self) -> bool {
        matches!(self, Origin::Named { counts: true, .. })
    }

    /// Whether an update that would lose the file ends.
    pub(super) const fn is_needed(self) -> bool {
        !matches!(self, Origin::Named { counts: false, .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Plain, below the boot folder.
    pub(super) path: PathBuf,
    pub(super) origin: Origin,
    /// Carried also where the release has a file of this name.
    pub(super) pinned: bool,
}

/// A carried file, for the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Below the boot folder.
    pub name: String,
    /// In bytes.
    pub size: u64,
    pub sha256: String,
    /// The setting that names it, `CARRY_BOOT`, or `keep`.
    pub origin: String,
}

/// Carried files, and those that could not be carried although they are needed.
#[derive(Debug, Default)]
pub struct Outcome {
    pub carried: Vec<Carried>,
    pub problems: Vec<Error>,
}

impl Outcome {
    fn report(&mut self, item: &Item, code: Code, why: &str, ends: bool) {
        let mut warnings = Vec::new();
        item.report(code, why, ends, &mut self.problems, &mut warnings);
        warnings.iter().for_each(|text| tracing::warn!("{text}"));
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    Missing,
    /// With its size in bytes.
    File(u64),
    /// It is there, and why it cannot be carried.
    Unfit(String),
}

impl Item {
    /// Whether the running boot folder has the file.
    pub(super) fn source(&self, from: &Path) -> Source {
        match self.open(from) {
            Ok(Some(file)) => match file.metadata() {
                Ok(meta) if meta.len() <= self.origin.limit() => Source::File(meta.len()),
                Ok(_) => Source::Unfit(format!("it has more than {} MiB", self.origin.limit() >> 20)),
                Err(e) => Source::Unfit(e.to_string()),
            },
            Ok(None) => Source::Missing,
            Err(e) => Source::Unfit(match e.raw_os_error() {
                Some(nix::libc::ELOOP | nix::libc::ENOTDIR) => "a link leads to it".to_owned(),
                _ => e.to_string(),
            }),
        }
    }

    fn open(&self, from: &Path) -> io::Result<Option<File>> {
        let opened =
            || parent(Folder::open_to_read(&from.canonicalize()?)?, &self.path)?.open_file(name(&self.path));
        match opened() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// `code`: for a file that is not a device tree.
    fn lost(&self, code: Code, why: &str) -> Error {
        let code = if self.origin.is_tree_that_counts() { Code::DeviceTreeMissing } else { code };
        let what = match self.origin {
            Origin::Named { key, .. } => format!("the device tree that {key} names"),
            Origin::Board => "which CARRY_BOOT lists".to_owned(),
            Origin::Pin => "which is pinned".to_owned(),
        };
        let path = self.path.display();
        let text = format!("cannot carry boot/{path}, {what}, into the new release: {why}");
        Error::new(code, text).object(path)
    }

    /// A file that ends the update is a problem; another one is a warning.
    pub(super) fn report(
        &self,
        code: Code,
        why: &str,
        ends: bool,
        problems: &mut Vec<Error>,
        warnings: &mut Vec<String>,
    ) {
        let lost = self.lost(code, why);
        if ends {
            problems.push(lost);
        } else {
            warnings.push(lost.message());
        }
    }
}

fn name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// The folder of a file. Follows no link.
fn parent(top: Folder, path: &Path) -> io::Result<Folder> {
    let folders = path.parent().unwrap_or(Path::new(""));
    folders.iter().try_fold(top, |folder, name| folder.enter(name))
}

struct Step<'a> {
    item: &'a Item,
    source: File,
    size: u64,
}

/// Copies what the release lacks, and what is pinned. Each file is a temporary one until it is on the medium and was read back.
/// `is_owners`: whether a file of the running boot folder is another one than its own release has.
pub(super) fn carry(from: &Path, to: &Path, items: &[Item], is_owners: &dyn Fn(&Path) -> bool) -> Outcome {
    let mut outcome = Outcome::default();
    let mut steps = Vec::new();
    for item in items {
        match item.plan(from, to, is_owners) {
            Ok(Some((source, size))) => steps.push(Step { item, source, size }),
            Ok(None) => {}
            Err(e) => {
                // A mistake in the board's list, or in a pin, must not end every update.
                let fits = e.kind() != io::ErrorKind::InvalidInput;
                let ends = if fits { item.origin.is_needed() } else { item.origin.is_tree_that_counts() };
                outcome.report(item, Code::UpdateFailed, &e.to_string(), ends);
            }
        }
    }
    for step in fitting(to, steps, &mut outcome) {
        match step.run(to) {
            Ok(carried) => outcome.carried.push(carried),
            Err(e) => {
                outcome.report(step.item, Code::UpdateFailed, &e.to_string(), step.item.origin.is_needed());
            }
        }
    }
    outcome
}

/// Those for which the new release's file system has space.
fn fitting<'a>(to: &Path, steps: Vec<Step<'a>>, outcome: &mut Outcome) -> Vec<Step<'a>> {
    if steps.is_empty() {
        return steps;
    }
    let space = match Folder::open(to).and_then(|folder| folder.space()) {
        Ok(space) => space,
        Err(e) => {
            steps.iter().for_each(|step| {
                outcome.report(step.item, Code::UpdateFailed, &e.to_string(), step.item.origin.is_needed());
            });
            return Vec::new();
        }
    };
    let mut free = space.free.saturating_mul(space.unit).saturating_sub(RESERVED_BYTES);
    let mut fit = Vec::new();
    for step in steps {
        // A unit for each folder that may have to be made.
        let folders = u64::try_from(step.item.path.iter().count()).unwrap_or(u64::MAX);
        let needed =
            step.size.next_multiple_of(space.unit).saturating_add(folders.saturating_mul(space.unit));
        match free.checked_sub(needed) {
            Some(left) => {
                free = left;
                fit.push(step);
            }
            None => {
                let why =
                    format!("its {} KiB do not fit into the other root partition", needed.div_ceil(1 << 10));
                outcome.report(step.item, Code::SlotFull, &why, step.item.origin.is_needed());
            }
        }
    }
    fit
}

impl Item {
    /// The file to copy with its size; `None` where there is nothing to do.
    fn plan(
        &self,
        from: &Path,
        to: &Path,
        is_owners: &dyn Fn(&Path) -> bool,
    ) -> io::Result<Option<(File, u64)>> {
        let size = match self.source(from) {
            Source::Missing => return Ok(None),
            Source::Unfit(why) => {
                // Where the release has the file, nothing is lost.
                return if to.join(&self.path).is_file() && !self.pinned {
                    Ok(None)
                } else {
                    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
                };
            }
            Source::File(size) => size,
        };
        let Some(source) = self.open(from)? else { return Ok(None) };
        let there = match Folder::open(to).and_then(|top| parent(top, &self.path)) {
            Ok(folder) => folder,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Some((source, size))),
            // A link of the release, through which the bootloader finds the file.
            Err(_) if !self.pinned && to.join(&self.path).is_file() => return Ok(None),
            Err(e) => return Err(io::Error::new(io::ErrorKind::InvalidInput, e)),
        };
        let shown = self.path.display();
        match there.entry(name(&self.path))?.map(|entry| entry.kind) {
            None => Ok(Some((source, size))),
            Some(FileKind::File) if there.holds(name(&self.path), &Content::File(&source))? => Ok(None),
            Some(FileKind::File | FileKind::Link) if self.pinned => {
                tracing::info!("boot/{shown} is pinned, and takes the place of the release's");
                Ok(Some((source, size)))
            }
            Some(_) if to.join(&self.path).is_file() => {
                // Two releases have two versions of a file; only one of the owner's is lost.
                if is_owners(&self.path) {
                    tracing::warn!(
                        "boot/{shown} of the new release takes the place of your own; to keep that, add {shown} to /mnt/boot/{}",
                        super::pins::FILE
                    );
                }
                Ok(None)
            }
            // It leads to nothing.
            Some(FileKind::Link) => Ok(Some((source, size))),
            Some(_) => {
                let why = "the new release has a folder of that name";
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }
}

impl Step<'_> {
    fn run(&self, to: &Path) -> io::Result<Carried> {
        let (path, origin) = (&self.item.path, self.item.origin.as_str());
        let mut folder = Folder::open(to)?;
        for name in path.parent().unwrap_or(Path::new("")) {
            if folder.entry(name)?.is_none() {
                file::make_folder(&folder, name)?;
            }
            folder = folder.enter(name)?;
        }
        if folder.entry(name(path))?.is_some_and(|entry| entry.kind == FileKind::Link) {
            file::remove_irregular(&folder, name(path))?;
        }
        file::replace(&folder, name(path), &Content::File(&self.source))?;
        let there = content(&folder.path().join(name(path)))?;
        let carried = Carried {
            name: path.display().to_string(),
            size: there.size,
            sha256: there.sha256.to_string(),
            origin: origin.to_owned(),
        };
        tracing::info!(
            MESSAGE_ID = events::BOOT_FILE_CARRIED,
            COPAL_FILE = carried.name,
            COPAL_SIZE = carried.size,
            COPAL_DIGEST = carried.sha256,
            COPAL_ORIGIN = origin,
            "carried boot/{} into the new release ({origin}, {} bytes)",
            carried.name,
            carried.size
        );
        Ok(carried)
    }
}
