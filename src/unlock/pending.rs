//! Lists that a commit appends to `dbx`, so that the firmware no longer starts the programs of the release before.
//!
//! A contract with the hooks of shell releases (meta-balena v8.0.2, `0-signed-update`, `95-secureboot/1-fwd_commit_apply-dbx`): `dbx-<MD5>.auth`,
//! and a file `<that>-<n>.hash` for each hash that the release allowed. A list with a hash of the new release's `db.esl` is not applied yet.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use md5::{Digest as _, Md5};

use super::check::{in_force, measurements, open, path_in_slot, would_not};
use super::next_start::{MAX_FILE_BYTES, PROGRAMS, Pair, Start};
use super::policies::Policies;
use super::{release, seal};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::measurements::Measured;
use crate::slot::Root;
use crate::sys::file::{self, Content, Folder, read_bytes};
use crate::tpm::policy::Digest;
use crate::uefi::authenticode::Program;
use crate::uefi::variables::Variable;
use crate::uefi::{Guid, authenticated, signature_list};

const FOLDER: &str = "/mnt/data/balenahup/pending-dbx";

/// Of the running release, which another one is about to replace.
pub(super) fn remember(paths: &Paths) -> Result<()> {
    let file = |name| path_in_slot(&paths.active(), name).filter(|path| path.is_file());
    let (Some(forbidding), Some(allowing)) = (file(release::FORBIDDEN), file(release::ADDED)) else {
        tracing::debug!("the running release has no list for dbx");
        return Ok(());
    };
    let read = |path: &Path| read_bytes(path, MAX_FILE_BYTES).map_err(|e| cannot("read", path, e));
    let (forbidding, allowing) = (read(&forbidding)?, read(&allowing)?);
    let name: String = Md5::digest(&forbidding).iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("dbx-{name}.auth");
    let entries = signature_list::entries(&allowing).map_err(|why| release::unfit(release::ADDED, why))?;

    let path = paths.at(FOLDER);
    let folder =
        file::make_folders(&path).and_then(|()| Folder::open(&path)).map_err(|e| cannot("make", &path, e))?;
    let put = |name: &str, content: &[u8]| {
        file::replace(&folder, OsStr::new(name), &Content::Bytes(content))
            .map_err(|e| cannot("write", &path.join(name), e))
    };
    // The list last: without the hashes, a shell release would take it for one that forbids none of its own.
    for (n, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.kind == Guid::SHA256.bytes()) {
        put(&format!("{name}-{n}.hash"), entry.data())?;
    }
    put(&name, &forbidding)?;
    Ok(())
}

/// The folder and the names of the lists in it; `None` where there is none.
fn waiting(paths: &Paths) -> Result<Option<(Folder, Vec<OsString>)>> {
    let path = paths.at(FOLDER);
    let folder = match Folder::open(&path) {
        Ok(folder) => folder,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(cannot("open", &path, e)),
    };
    let names = folder.list().map_err(|e| cannot("list", &path, e))?.into_iter().map(|(name, _)| name);
    let is_list = |name: &OsString| {
        let name = name.to_string_lossy();
        name.starts_with("dbx-") && name.ends_with(".auth")
    };
    let names: Vec<OsString> = names.filter(is_list).collect();
    Ok(Some((folder, names)).filter(|(_, names)| !names.is_empty()))
}

/// How many lists wait for a commit.
pub(crate) fn count(paths: &Paths) -> Result<usize> {
    Ok(waiting(paths)?.map_or(0, |(_, names)| names.len()))
}

/// Appends to `dbx` what forbids none of the programs in use. Before that, the TPM gets the policy of the start that is possible then, and loses all
/// others but those of this start and of the next one without the append.
pub(crate) fn apply(paths: &Paths, active: &Root) -> Result<()> {
    let Some(firmware) = in_force(paths, active)? else { return Ok(()) };
    let Some((folder, names)) = waiting(paths)? else { return Ok(()) };
    let (_, start) = measurements(paths, &firmware)?;
    let in_use = InUse::read(paths);
    start.must_be_explained_by(&[&parsed(&in_use.in_place), &parsed(&in_use.release)])?;
    let mut now = start.now.clone();
    for name in names {
        let file = folder.path().join(&name);
        let signed = read_bytes(&file, MAX_FILE_BYTES).map_err(|e| cannot("read", &file, e))?;
        let longer = authenticated::payload(&signed)
            .and_then(|lists| Ok((lists, signature_list::append(&now.dbx, lists)?)));
        let (lists, dbx) = match longer {
            Ok(longer) => longer,
            Err(why) => {
                tracing::warn!("{} is not appended to dbx: {why}", file.display());
                continue;
            }
        };
        let later = Measured { dbx, ..now.clone() };
        if later != now {
            if !in_use.are_allowed(&later, lists) {
                let file = file.display();
                tracing::info!("{file} is not appended to dbx yet: it forbids a program in use");
                continue;
            }
            seal_for(paths, &start, &in_use, [&now, &later])?;
            if let Err(e) = firmware.append_keys(Variable::DBX, &signed, &later.dbx) {
                let found = Measured::of(&firmware)?;
                if found == now {
                    tracing::error!("{} is not appended to dbx: {}", file.display(), e.message());
                    continue;
                }
                if found != later {
                    tracing::warn!(
                        "dbx has other entries now than an append makes: predicting the next start again"
                    );
                    seal_for(paths, &start, &in_use, [&later, &found])?;
                    return Err(e);
                }
            }
            now = later;
            tracing::info!("the firmware no longer allows what {} forbids", file.display());
        }
        remove(&folder, &name)?;
    }
    Ok(())
}

/// For this start, and for the next one with either of these variables.
fn seal_for(paths: &Paths, start: &Start, in_use: &InUse, keys: [&Measured; 2]) -> Result<()> {
    let (mut tpm, policies) = (open(paths)?, Policies::of(paths));
    let sealed = seal::read(&mut tpm, &policies)?;
    let mut branches = vec![sealed.met];
    for keys in keys {
        let next = in_use.policies(start, keys);
        if next.is_empty() {
            return Err(would_not(
                "the next start cannot be predicted: db has neither loader nor stage-2 kernel in place",
            ));
        }
        branches.extend(next.into_iter().filter(|branch| *branch != sealed.met));
    }
    seal::seal(&mut tpm, &policies, &sealed, &branches)
}

pub(super) fn parsed(files: &[Option<Vec<u8>>; 2]) -> Pair<'_> {
    files.each_ref().map(|file| file.as_deref().and_then(Program::parse))
}

/// Both, as an update may have been interrupted between them.
pub(super) struct InUse {
    pub(super) in_place: [Option<Vec<u8>>; 2],
    pub(super) release: [Option<Vec<u8>>; 2],
    /// Empty in a release without it; `None` if it cannot be read.
    allowed: Option<Vec<u8>>,
}

impl InUse {
    pub(super) fn read(paths: &Paths) -> InUse {
        let read = |path: PathBuf| read_bytes(&path, MAX_FILE_BYTES).ok();
        InUse {
            in_place: PROGRAMS.map(|name| read(paths.plain_boot().join(name))),
            release: [release::LOADER, release::KERNEL].map(|name| read(paths.at("/").join(name))),
            allowed: match read_bytes(&paths.at("/").join(release::ADDED), MAX_FILE_BYTES) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Some(Vec::new()),
                read => read.ok(),
            },
        }
    }

    /// Whether the firmware starts all of them with these variables, after an append of `lists`. What cannot be read may be forbidden.
    fn are_allowed(&self, later: &Measured, lists: &[u8]) -> bool {
        let starts = |file: &Option<Vec<u8>>| {
            file.as_deref().and_then(Program::parse).is_some_and(|program| later.starts(&program))
        };
        let Ok(forbidden) = signature_list::entries(lists) else { return false };
        let Some(Ok(mut allowed)) =
            self.allowed.as_deref().map(signature_list::entries).map(|all| all.map(Vec::into_iter))
        else {
            return false;
        };
        self.in_place.iter().chain(&self.release).all(starts)
            && !allowed.any(|one| forbidden.iter().any(|other| one.data() == other.data()))
    }

    /// Of the next start with these variables; empty where the firmware does not start what is in place.
    pub(super) fn policies(&self, start: &Start, keys: &Measured) -> Vec<Digest> {
        let [Some(loader), Some(kernel)] = parsed(&self.in_place) else { return Vec::new() };
        start.policies(keys, &[&loader, &kernel]).unwrap_or_default()
    }
}

/// The hashes last: they alone are of no use, and do no harm.
fn remove(folder: &Folder, name: &OsStr) -> Result<()> {
    let failed = |e| cannot("remove", &folder.path().join(name), e);
    file::remove(folder, name).map_err(failed)?;
    let start = format!("{}-", name.to_string_lossy());
    for (name, _) in folder.list().map_err(failed)? {
        if name.to_string_lossy().starts_with(&start) {
            file::remove(folder, &name).map_err(failed)?;
        }
    }
    Ok(())
}

fn cannot(what: &str, path: &Path, e: io::Error) -> Error {
    let path = path.display();
    Error::new(Code::Io, format!("cannot {what} {path}, which has lists for dbx")).object(path).because(e)
}
