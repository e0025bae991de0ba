//! Loader and stage-2 kernel of another release are put in place. Each start on the way is unlocked: the TPM gets the policies of all of them
//! first. Then the release's entries are appended to `db`, and only then are files replaced.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

use super::check::{in_force, measurements, open, path_in_slot, read_below, would_not};
use super::next_start::{MAX_FILE_BYTES, PROGRAMS};
use super::policies::{MOST_BRANCHES, Policies};
use super::seal::{self, Sealed};
use super::way::{Direction, Way};
use super::{pending, release};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::measurements::Measured;
use crate::signature::openpgp;
use crate::slot::{Root, hostapp};
use crate::sys::file::{self, Content, Folder, Outcome, read_bytes};
use crate::tpm::Tpm;
use crate::tpm::policy::Digest;
use crate::uefi::authenticode::Program;
use crate::uefi::signature_list;
use crate::uefi::variables::{Firmware, Variable};

const SIGNATURE: &str = "bzImage.sig";

/// Of the release in whose root this runs. Does nothing on a device that [`in_force`] does not know.
pub(crate) fn put_in_place(paths: &Paths, active: &Root, direction: Direction) -> Result<()> {
    let Some(firmware) = in_force(paths, active)? else { return Ok(()) };
    let now = Measured::of(&firmware)?;
    let mut contents = read_checked(paths, &now, direction)?;
    let mut take = |name: &str| contents.remove(name).unwrap_or_default();
    let new = New {
        loader: take(release::LOADER),
        kernel: take(release::KERNEL),
        signature: take(&release::signature_of(release::KERNEL)),
    };
    let (added, signed) = (take(release::ADDED), take(release::ADDED_SIGNED));
    let plain = paths.plain_boot();
    let db = signature_list::append(&now.db, &added).map_err(|why| release::unfit(release::ADDED, why))?;
    let later = Measured { db, ..now.clone() };
    if direction == Direction::Forward {
        new.has_space(&plain)?;
        warn_of_other_keys(paths, &new);
    }
    if later != now {
        has_space_for(&firmware, &signed)?;
    }

    let (_, start) = measurements(paths, &firmware)?;
    let in_place = PROGRAMS.map(|name| read_bytes(&plain.join(name), MAX_FILE_BYTES).ok());
    let running = [release::LOADER, release::KERNEL]
        .map(|name| read_bytes(&path_in_slot(&paths.active(), name)?, MAX_FILE_BYTES).ok());
    let in_place = in_place.each_ref().map(|file| file.as_deref().and_then(Program::parse));
    let running = running.each_ref().map(|file| file.as_deref().and_then(Program::parse));
    let new_programs = [&new.loader, &new.kernel].map(|file| Program::parse(file));
    let way = Way {
        start: &start,
        now: &now,
        in_place: &in_place,
        running: &running,
        new: &new_programs,
        direction,
    };
    let mut tpm = open(paths)?;
    let policies = Policies::of(paths);
    let mut widen = |later: &Measured| {
        let sealed = seal::read(&mut tpm, &policies)?;
        let branches = way.branches(later, sealed.met)?;
        widen(&mut tpm, &policies, &sealed, &branches)
    };
    widen(&later)?;
    if later != now {
        let found = append(&firmware, &now, &later, &signed)?;
        if found != later {
            tracing::warn!("db has other entries now than an append makes: predicting the next start again");
            widen(&found)?;
            if !new_programs.iter().flatten().all(|program| found.starts(program)) {
                let message = "the firmware's db does not have the new release's entries, though it has taken an append";
                return Err(Error::new(Code::FirmwareVariableFailed, message).object("db"));
            }
        }
        tracing::info!("the firmware allows the programs of the new release");
    }
    new.put_in(&plain, direction)?;
    if direction == Direction::Forward
        && let Err(e) = pending::remember(paths)
    {
        tracing::warn!(
            "the programs of the running release will stay allowed after the commit: {}",
            e.message()
        );
    }
    Ok(())
}

/// The files of [`release::check`], which accepts them.
fn read_checked(paths: &Paths, now: &Measured, direction: Direction) -> Result<BTreeMap<String, Vec<u8>>> {
    let top = paths.at("/");
    let contents = RefCell::new(BTreeMap::new());
    release::check(now, &|name| {
        // The keys of a release that has run are in `db`.
        if direction == Direction::Back && name == release::ADDED {
            return Ok(None);
        }
        let content = read_below(&top, &top.join(name))?;
        if let Some(content) = &content {
            contents.borrow_mut().insert(name.to_owned(), content.clone());
        }
        Ok(content)
    })?;
    Ok(contents.into_inner())
}

/// No order of two replacements helps there.
fn warn_of_other_keys(paths: &Paths, new: &New) {
    let file = hostapp::release_file(&paths.active(), Path::new(release::LOADER_KEYS));
    let Some(Ok(keys)) = file.map(|file| read_bytes(&file, MAX_FILE_BYTES)) else { return };
    let takes = openpgp::keys(&keys).and_then(|keys| openpgp::is_signed(&keys, &new.kernel, &new.signature));
    if takes != Ok(true) {
        tracing::warn!(
            "the running release's loader does not take the new stage-2 kernel, which another key has signed: until both are replaced, a moment after each other, a power cut leaves a device that does not start"
        );
    }
}

fn has_space_for(firmware: &Firmware, signed: &[u8]) -> Result<()> {
    let needed = u64::try_from(signed.len()).unwrap_or(u64::MAX);
    match firmware.free_bytes() {
        Some(free) if free < needed => {
            let message = format!(
                "the firmware has {free} bytes left for variables, and the new release's entries for db need {needed}"
            );
            Err(Error::new(Code::FirmwareVariableFailed, message).object("db").with_hint(
                "remove boot entries or other variables that are not needed, in the firmware's setup",
            ))
        }
        _ => Ok(()),
    }
}

/// Returns what the variables are afterwards. An error: they are as they were.
fn append(firmware: &Firmware, now: &Measured, later: &Measured, signed: &[u8]) -> Result<Measured> {
    match firmware.append_keys(Variable::DB, signed, &later.db) {
        Ok(()) => Ok(later.clone()),
        Err(e) => match Measured::of(firmware)? {
            found if found == *now => Err(e.and_also("the loader and the stage-2 kernel in place are not replaced").with_hint(
                "the release's db.auth has to be signed by a key in the firmware's KEK: install a release that was built with the keys of this device",
            )),
            found => {
                tracing::warn!("{}", e.message());
                Ok(found)
            }
        },
    }
}

/// What is so already is not written.
fn widen(tpm: &mut Tpm, policies: &Policies, sealed: &Sealed, branches: &[Digest]) -> Result<()> {
    let known = sealed.list.branches();
    if branches.iter().all(|branch| known.contains(branch)) {
        return seal::repair(tpm, policies, sealed);
    }
    if branches.len() > MOST_BRANCHES {
        let count = branches.len();
        let why = format!(
            "{count} different starts are possible on the way, and a policy has at most {MOST_BRANCHES}"
        );
        return Err(would_not(&why).with_hint("restart the device, then update again"));
    }
    tracing::info!("the disk will be unlocked in {} states", branches.len());
    seal::seal(tpm, policies, sealed, branches)
}

/// For the files of two lists, each of which takes a cluster.
const LISTS_BYTES: u64 = 256 << 10;

/// What is put in place.
struct New {
    loader: Vec<u8>,
    kernel: Vec<u8>,
    signature: Vec<u8>,
}

impl New {
    /// Old and new file are there at the same time.
    fn has_space(&self, plain: &Path) -> Result<()> {
        let kernel = (PROGRAMS[1], &self.kernel);
        let signature = (SIGNATURE, &self.signature);
        let loader = (PROGRAMS[0], &self.loader);
        let folder = open_folder(plain)?;
        let space = folder.space().map_err(|e| cannot("look at", plain, e))?;
        let mut needed = 0;
        for group in [&[kernel, signature][..], &[loader]] {
            let is_there = |(name, content): &(&str, &Vec<u8>)| {
                std::fs::read(plain.join(name)).is_ok_and(|old| old == **content)
            };
            if !group.iter().all(is_there) {
                let bytes: usize = group.iter().map(|(_, content)| content.len()).sum();
                needed = needed.max(u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(LISTS_BYTES));
            }
        }
        let free = space.free.saturating_mul(space.unit);
        if needed > free {
            let (plain, message) = (
                plain.display(),
                format!(
                    "{} has {free} bytes left, and the loader or the stage-2 kernel of the new release needs {needed} beside those in place",
                    plain.display()
                ),
            );
            return Err(Error::new(Code::SlotFull, message).object(plain));
        }
        Ok(())
    }

    /// On the way back in the opposite order: the states between are the same.
    fn put_in(&self, plain: &Path, direction: Direction) -> Result<()> {
        match direction {
            Direction::Forward => {
                self.put_kernel(plain)?;
                self.put_loader(plain)
            }
            Direction::Back => {
                self.put_loader(plain)?;
                self.put_kernel(plain)
            }
        }
    }

    fn put_kernel(&self, plain: &Path) -> Result<()> {
        let [_, kernel] = PROGRAMS;
        let files = [(kernel, &self.kernel), (SIGNATURE, &self.signature)];
        let files = files.map(|(name, content)| (OsStr::new(name), Content::Bytes(content)));
        let folder = open_folder(plain)?;
        let outcome =
            file::replace_together(&folder, &files).map_err(|e| cannot("write", &plain.join(kernel), e))?;
        if outcome == Outcome::Written {
            tracing::info!("{} and its signature are those of the release", plain.join(kernel).display());
        }
        Ok(())
    }

    fn put_loader(&self, plain: &Path) -> Result<()> {
        let [loader, _] = PROGRAMS.map(|name| plain.join(name));
        let folder = open_folder(loader.parent().unwrap_or(plain))?;
        let name = loader.file_name().unwrap_or_default();
        let outcome = file::replace(&folder, name, &Content::Bytes(&self.loader))
            .map_err(|e| cannot("write", &loader, e))?;
        if outcome == Outcome::Written {
            tracing::info!("{} is that of the release", loader.display());
        }
        Ok(())
    }
}

/// Without what a cut left there.
fn open_folder(path: &Path) -> Result<Folder> {
    let open = || {
        let folder = Folder::open(path)?;
        file::sweep(&folder)?;
        Ok(folder)
    };
    open().map_err(|e| cannot("look at", path, e))
}

fn cannot(what: &str, path: &Path, e: io::Error) -> Error {
    let path = path.display();
    Error::new(Code::BootCopyFailed, format!("cannot {what} {path}")).object(path).because(e)
}
