//! Compares the chosen files with the boot partition, and plans the writes. Changes nothing.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::fingerprint;
use super::release;
use super::rules::{self, Candidate, Choice, OLD_LOGO, When};
use super::{DeployRequest, Purpose};
use crate::boot_files::{Destination, Walk, failed, refused_by_fat};
use crate::boot_state::envblock::{EnvBlock, ROOT};
use crate::config::config_json::ConfigJson;
use crate::error::{Code, Error, Result};
use crate::slot::hostapp;
use crate::sys::file::{Content, FileKind, Folder, FolderEntry, Listing};

const CONFIG_JSON: &str = "config.json";
/// GRUB and U-Boot find their root and count attempts by these keys; images without rollbacks lack them.
const SELECTION: [&str; 2] = ["resin_root_part=", "upgrade_available="];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    Release(PathBuf),
    Target(PathBuf),
    /// The release's environment of GRUB, changed to select the root that boots now.
    Selection(Vec<u8>),
    /// The owner's `config.json` with `developmentMode`, read at the moment of writing.
    DevelopmentMode,
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) origin: Origin,
    pub(super) to: PathBuf,
    pub(super) size: u64,        // bytes
    pub(super) old: Option<u64>, // bytes
    pub(super) same: bool,
    /// Whether the file selects a root. Other files may have been written to match it, so it remains after a failure.
    pub(super) selects: bool,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Missing ones.
    pub(super) folders: BTreeSet<PathBuf>,
    pub(super) steps: Vec<Step>,
    pub(super) obsolete: Vec<PathBuf>,
    /// They refuse an update; an undo leaves these files out.
    pub(super) problems: Vec<Error>,
}

impl Plan {
    pub(super) fn make(request: &DeployRequest, dest: &Destination, choice: Choice) -> Plan {
        let plan = Plan { problems: choice.problems, ..Plan::default() };
        let mut maker = Maker { request, dest, plan, listings: BTreeMap::new() };
        for candidate in rules::one_each(choice.files, |path| maker.fold(path)) {
            if let Err(e) = maker.add(&candidate) {
                maker.plan.problems.push(e);
            }
        }
        // A release may have the old logo's file as well.
        let written: BTreeSet<OsString> = maker.plan.steps.iter().map(|step| maker.fold(&step.to)).collect();
        let obsolete = std::mem::take(&mut maker.plan.obsolete);
        maker.plan.obsolete =
            obsolete.into_iter().filter(|path| !written.contains(&maker.fold(path))).collect();
        maker.plan
    }

    pub(super) fn changes(&self) -> bool {
        !self.obsolete.is_empty() || self.steps.iter().any(|s| !s.same)
    }

    pub(super) fn refuse_problems(&mut self) -> Result<()> {
        match self.problems.drain(..).next() {
            Some(problem) => Err(problem),
            None => Ok(()),
        }
    }
}

struct Maker<'a> {
    request: &'a DeployRequest,
    dest: &'a Destination,
    plan: Plan,
    /// By the path of the folder.
    listings: BTreeMap<PathBuf, Listing>,
}

impl Maker<'_> {
    /// The path as its file system compares it, which may ignore case.
    fn fold(&self, path: &Path) -> OsString {
        match self.dest.nearest(path.parent().unwrap_or(Path::new(""))) {
            Ok(folder) if folder.is_fat() => rules::lower(path).into(),
            _ => path.as_os_str().to_owned(),
        }
    }

    fn add(&mut self, candidate: &Candidate) -> Result<()> {
        let there = self.look(&candidate.to)?;
        let deploy = match candidate.when {
            When::Always => true,
            When::Missing | When::Pinned => there.is_none(),
            When::NoSelection => !there.as_ref().is_some_and(|t| self.selects(t, candidate)),
            When::Logo => return self.add_logo(candidate),
            When::ConfigJson => return self.add_development_mode(there.as_ref()),
        };
        if !deploy && candidate.when == When::Pinned {
            tracing::info!("keeping /{}, which is pinned", candidate.to.display());
        }
        if !deploy {
            tracing::debug!("/{} exists; keeping it", candidate.to.display());
            return Ok(());
        }
        self.names_fit(&candidate.to)?;
        let origin = match candidate.when {
            When::NoSelection => self.selection(candidate).unwrap_or_else(|| self.release_file(candidate)),
            _ => self.release_file(candidate),
        };
        self.add_step(origin, &candidate.to, candidate.size, there.as_ref())?;
        if let Some(step) = self.plan.steps.last_mut() {
            step.selects = candidate.when == When::NoSelection;
        }
        if candidate.from != candidate.to && self.look(&candidate.from)?.is_some() {
            // A shell release deployed both; what reads the older name takes it for the newer one.
            self.plan.obsolete.push(candidate.from.clone());
        }
        Ok(())
    }

    fn release_file(&self, candidate: &Candidate) -> Origin {
        Origin::Release(self.request.source.join(&candidate.from))
    }

    /// The release's environment selects root A. Until the bootloader hook has run, the root that boots now must stay selected.
    fn selection(&self, candidate: &Candidate) -> Option<Origin> {
        let (index, mut text) = (self.request.boots_now?, Vec::new());
        release::open(&self.request.source.join(&candidate.from)).ok()?.read_to_end(&mut text).ok()?;
        let mut block = EnvBlock::parse(&text).ok()?;
        block.set(ROOT, index.to_string().as_bytes()).then(|| block.print().ok().map(Origin::Selection))?
    }

    fn add_step(&mut self, origin: Origin, to: &Path, size: u64, there: Option<&There>) -> Result<()> {
        let source = match &origin {
            Origin::Release(path) => Some(release::open(path)?),
            Origin::Target(path) => self.look(path)?.map(|t| t.open()).transpose()?,
            Origin::Selection(_) | Origin::DevelopmentMode => None,
        };
        let same = match (there, &source) {
            // A side file beside it changes the content that the next reader sees.
            (Some(there), Some(source)) => {
                !self.has_side_file(there)? && there.holds(&Content::File(source))?
            }
            _ => false,
        };
        self.add_folders(to)?;
        let old = there.map(|t| t.entry.size);
        self.plan.steps.push(Step { origin, to: to.to_owned(), size, old, same, selects: false });
        Ok(())
    }

    fn has_side_file(&mut self, there: &There) -> Result<bool> {
        let listing = match self.listings.entry(there.folder.path().to_owned()) {
            Entry::Occupied(listed) => listed.into_mut(),
            Entry::Vacant(new) => new.insert(there.listing()?),
        };
        Ok(listing.has_side_file(&there.folder, &there.name))
    }

    fn add_folders(&mut self, to: &Path) -> Result<()> {
        for folder in to.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()) {
            if self.plan.folders.contains(folder) || matches!(self.dest.walk(folder)?, Walk::There(_)) {
                break;
            }
            self.plan.folders.insert(folder.to_owned());
        }
        Ok(())
    }

    fn look(&self, path: &Path) -> Result<Option<There>> {
        let (Walk::There(folder), name) = self.dest.parent(path)? else { return Ok(None) };
        let name = name.to_owned();
        match folder.entry(&name).map_err(|e| failed(&folder, &name, e))? {
            None => Ok(None),
            Some(entry) if entry.kind == FileKind::File => Ok(Some(There { folder, name, entry })),
            Some(entry) if entry.kind == FileKind::Link => Err(self.dest.escapes(path)),
            Some(_) => {
                let full = folder.path().join(&name);
                let what =
                    format!("cannot deploy a boot file: {} is in the way: it is not a file", full.display());
                Err(Error::new(Code::BootNameInvalid, what).object(full.display()).with_hint("remove it"))
            }
        }
    }

    fn names_fit(&self, path: &Path) -> Result<()> {
        let on = self.dest.nearest(path.parent().unwrap_or(Path::new("")))?;
        let Some(why) = path.iter().find_map(refused_by_fat).filter(|_| on.is_fat()) else { return Ok(()) };
        let what = format!("cannot deploy /{} to a FAT file system: {why}", path.display());
        Err(Error::new(Code::BootNameInvalid, what)
            .object(path.display())
            .with_hint("rename the file in the release"))
    }

    /// Whether a file selects a root. In an image without rollbacks a label in `grub.cfg` does, and the new `grub.cfg` needs the release's
    /// environment.
    fn selects(&self, there: &There, candidate: &Candidate) -> bool {
        if self.request.purpose == Purpose::Undo {
            return true;
        }
        let own = there.text().unwrap_or_default();
        let Ok(mut file) = release::open(&self.request.source.join(&candidate.from)) else { return true };
        let mut text = Vec::new();
        if file.read_to_end(&mut text).is_err() {
            return true;
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        SELECTION.iter().all(|key| own.contains(key) || !text.contains(key))
    }

    /// A logo under the older name moves to the new name: the release's logo, unless the owner has changed it.
    fn add_logo(&mut self, candidate: &Candidate) -> Result<()> {
        let Some(old) = self.look(Path::new(OLD_LOGO))? else { return Ok(()) };
        let own = fingerprint::of_file(&old.open()?).map_err(|e| failed(&old.folder, &old.name, e))?;
        let kept = fingerprint::recorded(self.dest.root(), &self.request.board.fingerprint, OLD_LOGO);
        let (origin, size) = if kept.is_some_and(|kept| kept == own) {
            (self.release_file(candidate), candidate.size)
        } else {
            (Origin::Target(OLD_LOGO.into()), old.entry.size)
        };
        let there = self.look(&candidate.to)?;
        self.add_step(origin, &candidate.to, size, there.as_ref())?;
        self.plan.obsolete.push(OLD_LOGO.into());
        Ok(())
    }

    /// Development images were built separately once; since then `config.json` says so.
    fn add_development_mode(&mut self, there: Option<&There>) -> Result<()> {
        let Some(there) = there.filter(|_| self.request.purpose == Purpose::Update) else { return Ok(()) };
        let Some(text) = development_mode(there)? else { return Ok(()) };
        if !hostapp::os_release(&self.request.paths.active()).is_some_and(|r| r.is_development()) {
            return Ok(());
        }
        let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
        self.add_step(Origin::DevelopmentMode, Path::new(CONFIG_JSON), size, Some(there))
    }
}

pub(super) struct There {
    folder: Folder,
    name: OsString,
    entry: FolderEntry,
}

impl There {
    fn open(&self) -> Result<std::fs::File> {
        self.folder.open_file(&self.name).map_err(|e| failed(&self.folder, &self.name, e))
    }

    fn holds(&self, content: &Content<'_>) -> Result<bool> {
        self.folder.holds(&self.name, content).map_err(|e| failed(&self.folder, &self.name, e))
    }

    fn listing(&self) -> Result<Listing> {
        Listing::of(&self.folder).map_err(|e| failed(&self.folder, OsStr::new("."), e))
    }

    fn text(&self) -> Option<String> {
        let mut text = Vec::new();
        self.open().ok()?.take(1 << 20).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// `config.json` with `developmentMode`; `None` where the owner has set it.
fn development_mode(there: &There) -> Result<Option<Vec<u8>>> {
    if there.listing()?.has_side_file(&there.folder, &there.name) {
        tracing::warn!("another program is changing config.json; developmentMode is not set");
        return Ok(None);
    }
    match ConfigJson::load(&there.folder.path().join(&there.name)) {
        Ok(config) if config.lacks_development_mode() => Ok(Some(config.with_development_mode())),
        Ok(_) => Ok(None),
        Err(e) => {
            tracing::warn!("{}; developmentMode is not set", e.message());
            Ok(None)
        }
    }
}

/// Reads `config.json` again; `None` where nothing is to be written any more.
pub(super) fn new_config_json(dest: &Destination) -> Result<Option<Vec<u8>>> {
    let (root, name) = (dest.root(), OsString::from(CONFIG_JSON));
    let folder = root.enter(OsStr::new(".")).map_err(|e| failed(root, &name, e))?;
    let Some(entry) = folder.entry(&name).map_err(|e| failed(root, &name, e))? else { return Ok(None) };
    development_mode(&There { folder, name, entry })
}
