//! Deploys the boot files of a release, `/resin-boot`, to the boot partition. See `docs/hooks-bootfiles.md`.
//!
//! [`release`] lists the files, [`rules`] choose files and names, [`plan`] compares them with the partition, [`space`] refuses what
//! does not fit, [`run`] writes, [`fingerprint`] sums up.

mod fingerprint;
mod plan;
mod release;
mod rules;
mod run;
mod space;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

pub use rules::{Board, FINGERPRINT};

use super::{Deployed, Destination, recovered};
use crate::config::paths::Paths;
use crate::device_tree::pins::Pins;
use crate::error::{Code, Error, Result};
use crate::slot::{Root, Slot};
use crate::state::files::{BootfilesRecord, Marker, new_transaction};
use crate::sys::file::{self, Content, Folder};
use crate::sys::mount;
use crate::unlock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A release is being installed. What does not fit is refused; after a failure new files are removed again.
    Update,
    /// The files of a running or previous release are restored, as far as possible; without free space files are overwritten in place.
    Undo,
}

#[derive(Debug, Clone)]
pub struct DeployRequest {
    pub paths: Paths,
    /// `/resin-boot` of the release's root file system.
    pub source: PathBuf,
    pub target: PathBuf,
    pub purpose: Purpose,
    pub owner: Slot,
    /// Whether that slot is encrypted: it needs the loader for secure boot.
    pub encrypted: bool,
    pub transaction: String,
    pub board: Board,
    /// Number of the root partition that boots now, where it is known: a new environment of GRUB selects it.
    pub boots_now: Option<u32>,
}

impl DeployRequest {
    /// For the boot partition of a board without rules of its own.
    pub fn new(paths: &Paths, root: &Root, purpose: Purpose) -> Result<DeployRequest> {
        Ok(DeployRequest {
            paths: paths.clone(),
            source: paths.at("/resin-boot"),
            target: paths.boot(),
            purpose,
            owner: root.slot,
            boots_now: (purpose == Purpose::Undo).then_some(root.index),
            encrypted: root.encrypted,
            transaction: transaction(paths, root.slot)?,
            board: Board::default(),
        })
    }

    /// A repeated run completes an interrupted one, for the same release or for another.
    pub fn deploy(&self) -> Result<Deployed> {
        mounted(self)?;
        let mut release = release::list(&self.source)?;
        if unlock::has_other_loader(&self.paths, self.encrypted, &self.source) {
            tracing::warn!(
                "loader and configuration stay as they are: the TPM has no policy for the loader of slot {}",
                self.owner
            );
            release.retain(|file| !rules::is_of_loader(&file.path));
        }
        // With secure boot the release alone says what is on the boot partition.
        let pins = if self.encrypted { Pins::default() } else { Pins::read_aloud(&self.paths) };
        let choice = rules::choose(release, &self.board, &pins.paths, self.encrypted);
        let dest = Destination::open_beside(&self.target, &self.paths.plain_boot())
            .map_err(|e| e.with_hint("check the kernel log for errors of the boot partition"))?;
        run::sweep(&dest, &choice)?;
        let mut plan = plan::Plan::make(self, &dest, choice);
        if self.purpose == Purpose::Update {
            plan.refuse_problems()?;
            self.has_space(&plan, &dest)?;
        }
        if plan.changes() || is_recorded_for_another(self) {
            record(self)?;
        }
        run::Deployment::new(self, &dest, plan).run()
    }
}

impl DeployRequest {
    /// Makes space of what fsck has left, where it is short of it.
    fn has_space(&self, plan: &plan::Plan, dest: &Destination) -> Result<()> {
        let fits = || space::check(plan, dest, Path::new(&self.board.fingerprint));
        match fits() {
            Err(e) if e.code() == Code::BootPartitionFull => {
                let moved = recovered::move_away(&self.paths, dest.root())
                    .map_err(|also| e.clone().and_also(&also.message()))?;
                if moved { fits() } else { Err(e) }
            }
            done => done,
        }
    }
}

/// Of the running update, otherwise of an earlier attempt of the same deployment.
fn transaction(paths: &Paths, owner: Slot) -> Result<String> {
    // Both are copal's own records. A damaged one says nothing about boot files.
    if let Ok(Some(marker)) = Marker::read(paths) {
        return Ok(marker.transaction);
    }
    match BootfilesRecord::read(paths) {
        Ok(Some(record)) if record.owner == owner => Ok(record.transaction),
        _ => new_transaction(),
    }
}

/// Updates the fingerprints after the selection has changed: hooks of an update, a verdict and a bootloader that counts change it after
/// `1-bootfiles`. `md5sum -c` then accepts them. No boot depends on that: a failure is a warning.
pub(crate) fn sum_up_selection(paths: &Paths) {
    if let Err(e) = try_sum_up_selection(paths) {
        tracing::warn!("{e}; `md5sum -c` will not accept the fingerprint of the boot files");
    }
}

fn try_sum_up_selection(paths: &Paths) -> Result<()> {
    let name = OsStr::new(FINGERPRINT);
    for place in BTreeSet::from([paths.boot(), paths.plain_boot()]) {
        let written = || -> io::Result<()> {
            let folder = Folder::open(&place)?;
            if folder.entry(name)?.is_none() {
                return Ok(());
            }
            // The hook of a shell release does not remove temporary files.
            file::sweep(&folder)?;
            match fingerprint::after_selection(&folder, name)? {
                Some(text) => file::replace(&folder, name, &Content::Bytes(&text)).map(drop),
                None => Ok(()),
            }
        };
        written().map_err(|e| {
            let path = place.join(name);
            Error::new(Code::BootCopyFailed, format!("cannot write {}", path.display()))
                .object(path.display())
                .because(e)
        })?;
    }
    Ok(())
}

/// Without this check, files would go into the folder below an unmounted boot partition.
fn mounted(request: &DeployRequest) -> Result<()> {
    let inside = request.target.strip_prefix(request.paths.root()).unwrap_or(&request.target);
    let point = Path::new("/").join(inside);
    let table = request.paths.at("/proc/self/mountinfo");
    let mounts = mount::read_mounts(&table)
        .map_err(|e| Error::new(Code::Io, "cannot read /proc/self/mountinfo").because(e))?;
    if mounts.iter().any(|m| m.point == point) {
        return Ok(());
    }
    let place = request.target.display();
    Err(Error::new(
        Code::BootMountFailed,
        format!("cannot deploy boot files to {place}: nothing is mounted there"),
    )
    .object(place)
    .with_hint("check the mount units of the boot partition and the kernel log"))
}

fn is_recorded_for_another(request: &DeployRequest) -> bool {
    matches!(BootfilesRecord::read(&request.paths), Ok(Some(record)) if record.owner != request.owner)
}

fn record(request: &DeployRequest) -> Result<()> {
    let record = BootfilesRecord { transaction: request.transaction.clone(), owner: request.owner };
    match record.write(&request.paths) {
        // An undo must go on: a device without a state partition needs its boot files all the more.
        Err(e) if request.purpose == Purpose::Undo => {
            tracing::warn!("{}; the next boot would not detect a power cut now", e.message());
            Ok(())
        }
        result => result,
    }
}
