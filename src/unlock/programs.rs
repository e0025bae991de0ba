//! Loader and stage-2 kernel of another release are put in place. Each start on the way is unlocked: the TPM gets the policies of all of them
//! first. Then the release's entries are appended to `db`, and only then are files replaced.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::check::{
    accepts_loader_key, in_force, measurements, open, path_in_slot, read_below, running_loader_keys,
    would_not,
};
use super::next_start::{MAX_FILE_BYTES, PROGRAMS, Pair, Start};
use super::policies::{MOST_BRANCHES, Policies};
use super::seal;
use super::way::{Direction, Way};
use super::{pending, release};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result, counted};
use crate::measurements::Measured;
use crate::slot::Root;
use crate::sys::file::{self, Content, Folder, Outcome, read_bytes};
use crate::tpm::policy::Digest;
use crate::uefi::authenticode::Program;
use crate::uefi::signature_list;
use crate::uefi::variables::{Firmware, Variable};

const SIGNATURE: &str = "bzImage.sig";

/// Of the release in whose root this runs. Does nothing on a device that [`in_force`] does not know.
pub(crate) fn put_in_place(paths: &Paths, active: &Root, direction: Direction) -> Result<()> {
    let Some(firmware) = in_force(paths, active)? else { return Ok(()) };
    let now = Measured::of(&firmware)?;
    let plain = paths.plain_boot();
    match direction {
        Direction::Forward => {
            let mut contents = read_checked(paths, &now)?;
            let mut take = |name: &str| contents.remove(name);
            let missing = || Error::internal("a program of the release was checked and is missing");
            let files = Files {
                loader: take(release::LOADER).ok_or_else(missing)?,
                kernel: take(release::KERNEL).ok_or_else(missing)?,
                signature: take(&release::signature_of(release::KERNEL)).ok_or_else(missing)?,
            };
            // Only a release with new programs has them.
            let [added, signed] =
                [release::ADDED, release::ADDED_SIGNED].map(|n| take(n).unwrap_or_default());
            let db =
                signature_list::append(&now.db, &added).map_err(|why| release::unfit(release::ADDED, why))?;
            let later = Measured { db, ..now.clone() };
            files.has_space(&plain)?;
            if later != now {
                has_space_for(&firmware, &signed)?;
            }
            let prepared = Prepared::new(paths, &firmware, &files, direction)?;
            prepared.seal(paths, &later)?;
            if later != now {
                let found = append(&firmware, &now, &later, &signed)?;
                if found != later {
                    prepared.after_another_append(paths, &found)?;
                }
                tracing::info!("the firmware allows the programs of the new release");
            }
            files.put_in(&plain, direction)?;
            if let Err(e) = pending::remember(paths) {
                let e = e.message();
                tracing::warn!("the programs of the running release will stay allowed after the commit: {e}");
            }
            Ok(())
        }
        // It has run, or runs: what cannot be checked now must not keep it from coming back.
        Direction::Back => {
            let files = Files::of_release(paths)?;
            files.must_start(&now)?;
            let sealed = Prepared::new(paths, &firmware, &files, direction)
                .and_then(|prepared| prepared.seal(paths, &now));
            if files.are_in(&plain) {
                if let Err(e) = sealed {
                    tracing::warn!("loader and stage-2 kernel are in place: {}", e.message());
                }
                return Ok(());
            }
            sealed?;
            files.put_in(&plain, direction)
        }
    }
}

/// The programs by which a start is possible, and what this one has measured.
struct Prepared<'a> {
    start: Start,
    in_place: [Option<Vec<u8>>; 2],
    running: [Option<Vec<u8>>; 2],
    files: &'a Files,
    direction: Direction,
}

impl<'a> Prepared<'a> {
    fn new(
        paths: &Paths,
        firmware: &Firmware,
        files: &'a Files,
        direction: Direction,
    ) -> Result<Prepared<'a>> {
        let (_, start) = measurements(paths, firmware)?;
        let plain = paths.plain_boot();
        let running = [release::LOADER, release::KERNEL].map(|name| path_in_slot(&paths.active(), name));
        let read = |path: PathBuf| read_bytes(&path, MAX_FILE_BYTES).ok();
        Ok(Prepared {
            start,
            in_place: PROGRAMS.map(|name| read(plain.join(name))),
            running: running.map(|path| path.and_then(read)),
            files,
            direction,
        })
    }

    /// Makes each start on the way one that is unlocked. What is so already is not written.
    fn seal(&self, paths: &Paths, later: &Measured) -> Result<()> {
        let (mut tpm, policies) = (open(paths)?, Policies::of(paths));
        let mut sealed = seal::read(&mut tpm, &policies)?;
        let in_place = self.in_place.each_ref().map(|file| file.as_deref().and_then(Program::parse));
        let running = self.running.each_ref().map(|file| file.as_deref().and_then(Program::parse));
        let way = Way {
            start: &self.start,
            now: &self.start.now,
            in_place: &in_place,
            running: &running,
            new: &self.files.programs(),
            direction: self.direction,
        };
        let branches = way.branches(later, sealed.met)?;
        let is_known = |next: &Vec<Digest>| {
            let known = sealed.list.branches();
            !next.is_empty() && next.iter().all(|branch| known.contains(branch))
        };
        // The hooks of a shell release have sealed for programs that they did not put in place.
        if sealed.is_for_another && way.next().as_ref().is_some_and(is_known) {
            seal::take_back(&mut tpm, &policies, &sealed)?;
            sealed = seal::read(&mut tpm, &policies)?;
        }
        let known = sealed.list.branches();
        if !sealed.is_for_another && branches.iter().all(|branch| known.contains(branch)) {
            return seal::repair(&mut tpm, &policies, &sealed);
        }
        if branches.len() > MOST_BRANCHES {
            let count = branches.len();
            let why = format!(
                "{count} different starts are possible on the way, and a policy has at most {MOST_BRANCHES}"
            );
            let hint = "if `copal doctor` says that the next start is unlocked: restart the device, then update again";
            return Err(would_not(&why).with_hint(hint));
        }
        tracing::info!("the disk will be unlocked in {}", counted(branches.len(), "state"));
        seal::seal(&mut tpm, &policies, &sealed, &branches)
    }

    /// The firmware has made something else of `db` than was predicted.
    fn after_another_append(&self, paths: &Paths, found: &Measured) -> Result<()> {
        tracing::warn!("db has other entries now than an append makes: predicting the next start again");
        let warned = |e: Error| {
            e.and_also("db has changed already: do not restart the device before an update has succeeded")
        };
        self.seal(paths, found).map_err(warned)?;
        if self.files.programs().iter().flatten().all(|program| found.starts(program)) {
            return Ok(());
        }
        let message = "the firmware has taken the new release's entries for db, and does not have them now";
        Err(Error::new(Code::FirmwareVariableFailed, message).object("db"))
    }
}

/// The files of [`release::check`], which accepts them.
fn read_checked(paths: &Paths, now: &Measured) -> Result<BTreeMap<String, Vec<u8>>> {
    let top = paths.at("/");
    let running = running_loader_keys(paths, accepts_loader_key(paths, false));
    let contents = RefCell::new(BTreeMap::new());
    release::check(now, running.as_deref(), &|name| {
        let content = read_below(&top, &top.join(name))?;
        if let Some(content) = &content {
            contents.borrow_mut().insert(name.to_owned(), content.clone());
        }
        Ok(content)
    })?;
    Ok(contents.into_inner())
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

/// Returns what the variables are afterwards.
fn append(firmware: &Firmware, now: &Measured, later: &Measured, signed: &[u8]) -> Result<Measured> {
    match firmware.append_keys(Variable::DB, signed, &later.db) {
        Ok(()) => Ok(later.clone()),
        Err(e) => match Measured::of(firmware)? {
            found if found == *now => Err(e.and_also("the loader and the stage-2 kernel in place are not replaced").with_hint(
                "the firmware takes a db.auth only if a key in its KEK has signed it: install a release that was built with the keys of this device",
            )),
            found => {
                tracing::warn!("{}", e.message());
                Ok(found)
            }
        },
    }
}

/// For the files of two lists, each of which takes a cluster.
const LISTS_BYTES: u64 = 256 << 10;

/// What is put in place.
struct Files {
    loader: Vec<u8>,
    kernel: Vec<u8>,
    signature: Vec<u8>,
}

impl Files {
    /// Of the release in whose root this runs, unchecked.
    fn of_release(paths: &Paths) -> Result<Files> {
        let top = paths.at("/");
        let read = |name: &str| match read_below(&top, &top.join(name)) {
            Ok(Some(content)) => Ok(content),
            Ok(None) => Err(release::unfit(name, "the release does not have it")),
            Err(e) => Err(release::unfit(name, "it cannot be read").because(e)),
        };
        Ok(Files {
            loader: read(release::LOADER)?,
            kernel: read(release::KERNEL)?,
            signature: read(&release::signature_of(release::KERNEL))?,
        })
    }

    fn programs(&self) -> Pair<'_> {
        [Program::parse(&self.loader), Program::parse(&self.kernel)]
    }

    fn must_start(&self, now: &Measured) -> Result<()> {
        for (name, program) in [release::LOADER, release::KERNEL].iter().zip(self.programs()) {
            let why = match program {
                Some(program) => now.refusal(&program),
                None => Some("it is not a UEFI program, or is damaged".to_owned()),
            };
            if let Some(why) = why {
                return Err(release::unfit(name, &format!("the firmware would not start it: {why}")));
            }
        }
        Ok(())
    }

    fn are_in(&self, plain: &Path) -> bool {
        let [loader, kernel] = PROGRAMS;
        let is = |(name, content): (&str, &Vec<u8>)| {
            fs::read(plain.join(name)).is_ok_and(|there| there == *content)
        };
        [(loader, &self.loader), (kernel, &self.kernel), (SIGNATURE, &self.signature)].into_iter().all(is)
    }

    /// Old and new file are there at the same time.
    fn has_space(&self, plain: &Path) -> Result<()> {
        let [loader, kernel] = PROGRAMS;
        // What a cut left there is removed first.
        let loaders = plain.join(loader);
        open_folder(loaders.parent().unwrap_or(plain))?;
        let space = open_folder(plain)?.space().map_err(|e| cannot("look at", plain, e))?;
        let groups = [&[(kernel, &self.kernel), (SIGNATURE, &self.signature)][..], &[(loader, &self.loader)]];
        let sizes = groups.into_iter().map(|group| {
            let is_there = |(name, content): &(&str, &Vec<u8>)| {
                fs::read(plain.join(name)).is_ok_and(|there| there == **content)
            };
            let bytes: usize = group.iter().map(|(_, content)| content.len()).sum();
            if group.iter().all(is_there) { 0 } else { u64::try_from(bytes).unwrap_or(u64::MAX) }
        });
        let needed = sizes.max().unwrap_or(0).saturating_add(LISTS_BYTES);
        let free = space.free.saturating_mul(space.unit);
        if needed <= free {
            return Ok(());
        }
        let plain = plain.display();
        let message = format!(
            "{plain} has {free} bytes left, and loader, stage-2 kernel and policies of the new release need {needed} beside those in place"
        );
        let hint =
            "move files that do not belong there off it, FSCK*.REC, which fsck has recovered, among them";
        Err(Error::new(Code::SlotFull, message).object(plain).with_hint(hint))
    }

    /// In an undo or a rollback in the opposite order: the states between are the same.
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
            tracing::info!("{} and its signature come from the release now", plain.join(kernel).display());
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
            tracing::info!("{} comes from the release now", loader.display());
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
