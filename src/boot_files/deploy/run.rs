//! Writes the boot files, folder by folder; each file is complete, old or new, at every instant.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::ffi::OsStr;
use std::fs::FileTimes;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::fingerprint;
use super::plan::{Origin, Plan, Step, new_config_json};
use super::release;
use super::rules::{Choice, SIGNATURE};
use super::{DeployRequest, Purpose};
use crate::boot_files::{Deployed, Destination, Walk, failed};
use crate::error::Result;
use crate::sys::crash_point::crash_point;
use crate::sys::file::{self, Content, Folder, Listing, Outcome};

/// Removes temporary files of interrupted writes from all folders of the deployment, before any other change and before space is
/// counted.
pub(super) fn sweep(dest: &Destination, choice: &Choice) -> Result<()> {
    let parents = choice.files.iter().filter_map(|w| w.to.parent());
    let folders: BTreeSet<&Path> = parents.chain([Path::new("")]).collect();
    for path in folders {
        // If something is in the way of a folder, the plan reports it.
        if let Ok(Walk::There(folder)) = dest.walk(path) {
            file::sweep(&folder).map_err(|e| failed(&folder, OsStr::new("."), e))?;
        }
    }
    Ok(())
}

enum Made {
    File(PathBuf),
    Folder(PathBuf),
}

pub(super) struct Deployment<'a> {
    request: &'a DeployRequest,
    dest: &'a Destination,
    plan: Plan,
    made: Vec<Made>,
    done: Deployed,
    /// By the path of the folder.
    listings: BTreeMap<PathBuf, Listing>,
}

impl<'a> Deployment<'a> {
    pub(super) fn new(request: &'a DeployRequest, dest: &'a Destination, plan: Plan) -> Self {
        Deployment {
            request,
            dest,
            plan,
            made: Vec::new(),
            done: Deployed::default(),
            listings: BTreeMap::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<Deployed> {
        let plan = std::mem::take(&mut self.plan);
        match self.request.purpose {
            Purpose::Update => {
                if let Err(e) = self.all_or_nothing_new(&plan) {
                    self.take_back();
                    return Err(e);
                }
            }
            Purpose::Undo => self.as_far_as_it_goes(plan)?,
        }
        Ok(self.done)
    }

    fn all_or_nothing_new(&mut self, plan: &Plan) -> Result<()> {
        // A file of the owner that cannot be read would fail the update at its end: fail now, before the first write.
        self.fingerprint()?;
        for steps in together(&plan.steps) {
            self.steps(&steps)?;
        }
        self.remove_obsolete(plan)?;
        self.finish(plan)
    }

    fn as_far_as_it_goes(&mut self, mut plan: Plan) -> Result<()> {
        let problems = std::mem::take(&mut plan.problems);
        let mut todo = together(&plan.steps);
        let mut errors = Vec::new();
        // A file that did not fit may fit after smaller files are restored.
        while !todo.is_empty() {
            let before = todo.len();
            errors.clear();
            todo.retain(|steps| match self.steps(steps) {
                Ok(()) => false,
                Err(e) => {
                    errors.push(e);
                    true
                }
            });
            if todo.len() == before {
                break;
            }
        }
        errors.splice(0..0, problems);
        if errors.is_empty() {
            errors.extend(self.remove_obsolete(&plan).err());
        }
        errors.extend(self.finish(&plan).err());
        for e in errors.iter().skip(1) {
            tracing::error!("{e}");
        }
        match errors.into_iter().next() {
            Some(e) => Err(e.after_write()),
            None => Ok(()),
        }
    }

    fn steps(&mut self, steps: &[&Step]) -> Result<()> {
        if let [file, signature] = steps
            && self.pair(file, signature)?
        {
            return Ok(());
        }
        steps.iter().try_for_each(|step| self.step(step))
    }

    /// Whether the two were replaced. An undo without space for second copies writes them one after the other.
    fn pair(&mut self, file: &Step, signature: &Step) -> Result<bool> {
        let (Origin::Release(one), Origin::Release(other)) = (&file.origin, &signature.origin) else {
            return Ok(false);
        };
        let folder = self.folder(file.to.parent().unwrap_or(Path::new("")))?;
        let (name, its) = [file, signature].map(|step| step.to.file_name().unwrap_or_default()).into();
        tracing::info!("deploying {} and its signature", folder.path().join(name).display());
        let (content, its_content) = (release::open(one)?, release::open(other)?);
        let files = [(name, Content::File(&content)), (its, Content::File(&its_content))];
        match file::replace_together(&folder, &files) {
            Ok(_) => {
                self.done.written += 2;
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::StorageFull && self.may_overwrite(&folder, name) => {
                Ok(false)
            }
            Err(e) => Err(failed(&folder, name, e)),
        }
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let path = self.dest.root().path().join(&step.to);
        if step.same {
            tracing::debug!("{} is unchanged", path.display());
            self.done.unchanged += 1;
            return Ok(());
        }
        tracing::info!("deploying {}", path.display());
        let folder = self.folder(step.to.parent().unwrap_or(Path::new("")))?;
        let name = step.to.file_name().unwrap_or_default();
        if step.old.is_none() && !step.selects {
            self.made.push(Made::File(step.to.clone()));
        }
        let outcome = match &step.origin {
            Origin::Release(from) => self.put(&folder, name, &Content::File(&release::open(from)?)),
            Origin::Selection(block) => self.put(&folder, name, &Content::Bytes(block)),
            Origin::Target(from) => match self.dest.parent(from)? {
                (Walk::There(beside), from) => {
                    let file = beside.open_file(from).map_err(|e| failed(&beside, from, e))?;
                    self.put(&folder, name, &Content::File(&file))
                }
                (Walk::Missing, _) => return Ok(()),
            },
            Origin::DevelopmentMode => match new_config_json(self.dest)? {
                Some(text) => self.put(&folder, name, &Content::Bytes(&text)),
                None => return Ok(()),
            },
        };
        match outcome.map_err(|e| failed(&folder, name, e))? {
            Outcome::Written => self.done.written += 1,
            Outcome::Unchanged => self.done.unchanged += 1,
        }
        Ok(())
    }

    fn folder(&mut self, path: &Path) -> Result<Folder> {
        let mut outer: Vec<&Path> = path.ancestors().filter(|p| !p.as_os_str().is_empty()).collect();
        outer.reverse();
        for each in outer {
            if let Walk::Missing = self.dest.walk(each)? {
                // First, since the folder may exist although its creation fails.
                self.made.push(Made::Folder(each.to_owned()));
                self.dest.make(each)?;
            }
        }
        match self.dest.walk(path)? {
            Walk::There(folder) => Ok(folder),
            Walk::Missing => Err(self.dest.escapes(path)),
        }
    }

    /// Without space for a second copy, an undo overwrites the file in place.
    fn put(&mut self, folder: &Folder, name: &OsStr, content: &Content<'_>) -> io::Result<Outcome> {
        let listing = match self.listings.entry(folder.path().to_owned()) {
            Entry::Occupied(listed) => listed.into_mut(),
            Entry::Vacant(new) => new.insert(Listing::of(folder)?),
        };
        match file::replace_listed(folder, listing, name, content) {
            Err(e) if e.kind() == io::ErrorKind::StorageFull && self.may_overwrite(folder, name) => {
                tracing::warn!(
                    "no space for a second copy of {}; overwriting it in place",
                    folder.path().join(name).display()
                );
                file::overwrite(folder, name, content)
            }
            other => other,
        }
    }

    fn may_overwrite(&self, folder: &Folder, name: &OsStr) -> bool {
        self.request.purpose == Purpose::Undo && folder.entry(name).is_ok_and(|e| e.is_some())
    }

    fn remove_obsolete(&mut self, plan: &Plan) -> Result<()> {
        for path in &plan.obsolete {
            let (Walk::There(folder), name) = self.dest.parent(path)? else { continue };
            tracing::info!("removing {}", folder.path().join(name).display());
            if file::remove(&folder, name).map_err(|e| failed(&folder, name, e))? {
                self.done.removed += 1;
            }
        }
        Ok(())
    }

    fn finish(&mut self, plan: &Plan) -> Result<()> {
        let mut folders = BTreeSet::new();
        for step in &plan.steps {
            let (Walk::There(folder), name) = self.dest.parent(&step.to)? else { continue };
            // A repeated run that changes nothing must not write for this alone.
            if plan.changes()
                && let Err(e) = touch(&folder, name)
            {
                tracing::warn!("cannot set the time of {}: {e}", folder.path().join(name).display());
            }
            folders.insert(step.to.parent().unwrap_or(Path::new("")));
        }
        for path in folders {
            if let Walk::There(folder) = self.dest.walk(path)? {
                // Unchanged files may have been written by a program that did not flush them.
                folder
                    .sync_folder()
                    .and_then(|()| folder.flush())
                    .map_err(|e| failed(&folder, OsStr::new("."), e))?;
            }
        }
        let (root, name) = (self.dest.root(), &self.request.board.fingerprint);
        let written = self.fingerprint().and_then(|text| {
            self.put(root, name, &Content::Bytes(&text)).map(drop).map_err(|e| failed(root, name, e))
        });
        match written {
            // The fingerprint shows which files were changed; the running system boots without it.
            Err(e) if self.request.purpose == Purpose::Undo => {
                tracing::warn!("{e}; the fingerprint does not match the boot files");
                Ok(())
            }
            other => other,
        }
    }

    fn fingerprint(&self) -> Result<Vec<u8>> {
        let (root, name) = (self.dest.root(), &self.request.board.fingerprint);
        fingerprint::text(root, name).map_err(|e| failed(root, name, e))
    }

    /// Removes what this run created, the last first. Replaced files remain: the program that undoes the update has the old ones.
    fn take_back(&self) {
        for made in self.made.iter().rev() {
            let (Made::File(path) | Made::Folder(path)) = made;
            let Ok((Walk::There(folder), name)) = self.dest.parent(path) else { continue };
            if let Ok(None) = folder.entry(name) {
                continue;
            }
            let removed = match made {
                Made::File(_) => file::remove(&folder, name).map(drop),
                // Temporary files of interrupted writes may be in it.
                Made::Folder(_) => folder
                    .enter(name)
                    .and_then(|made| file::sweep(&made))
                    .and_then(|_| file::remove_folder(&folder, name)),
            };
            match removed {
                Ok(()) => tracing::info!("removed {} again", folder.path().join(name).display()),
                Err(e) => tracing::warn!("cannot remove {} again: {e}", folder.path().join(name).display()),
            }
        }
    }
}

/// A file that is replaced, with its signature where that is replaced too: GRUB takes no file with another's signature. Each other step is alone.
fn together(steps: &[Step]) -> Vec<Vec<&Step>> {
    let is_replaced = |step: &&Step| !step.same && step.old.is_some();
    let signature_of = |file: &Step| {
        let mut name = file.to.clone().into_os_string();
        name.push(SIGNATURE);
        steps.iter().filter(is_replaced).find(|step| step.to.as_os_str() == name)
    };
    let signatures: BTreeSet<&Path> =
        steps.iter().filter(is_replaced).filter_map(signature_of).map(|step| step.to.as_path()).collect();
    let with_signature = |step| [Some(step), signature_of(step).filter(|_| is_replaced(&step))];
    let first = steps.iter().filter(|step| !signatures.contains(step.to.as_path()));
    first.map(|step| with_signature(step).into_iter().flatten().collect()).collect()
}

/// Sets the time of a file to now. On FAT this rewrites one sector of its folder, with only the time changed; it need not outlast a
/// power cut.
fn touch(folder: &Folder, name: &OsStr) -> io::Result<()> {
    crash_point!(folder.path().join(name), "touch");
    let now = SystemTime::now();
    folder.open_file(name)?.set_times(FileTimes::new().set_accessed(now).set_modified(now))
}
