//! `1-bootfiles`: puts the boot files of a release on the boot partition.
//!
//! A release has them in `/resin-boot`. [`release`] lists them, [`rules`] say which are deployed and under which name, [`plan`]
//! compares them with what is there, [`space`] refuses what does not fit, [`run`] writes, [`fingerprint`] sums up. Boards install
//! copies of the hook under other names; those deploy to the boot partition that is not encrypted. See
//! `docs/hooks-bootfiles.md`.

mod call;
mod fingerprint;
mod hands;
mod plan;
mod release;
mod rules;
mod run;
mod space;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

pub use call::{Call, VARIABLES};
pub use hands::{Hands, OwnHands};
pub use rules::{Board, FINGERPRINT};
pub use run::Deployed;

use super::Context;
use crate::boot_files::Destination;
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::slot::{Root, Roots, Slot};
use crate::state::files::{BootfilesRecord, Marker, RollbackRecord, new_transaction};
use crate::sys::file::{self, Content, Folder};
use crate::sys::mount;

/// The names it is known by. The first one means the boot partition, all others the one that is not encrypted.
pub const NAMES: &[&str] = &["1-bootfiles", "2-rpifiles", "2-imxfiles"];

/// What boot files are deployed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A release is being installed. What does not fit is refused, and what was new is taken away again after a failure.
    Update,
    /// The files of the running or returning release are put back. It goes as far as it can, and for space it overwrites.
    Undo,
}

/// One deployment.
#[derive(Debug, Clone)]
pub struct Request {
    /// The device.
    pub paths: Paths,
    /// The folder with the release's boot files: `/resin-boot` of its root file system.
    pub source: PathBuf,
    /// Where the boot partition is mounted.
    pub target: PathBuf,
    /// What for.
    pub purpose: Purpose,
    /// The slot whose release this is.
    pub owner: Slot,
    /// Whether that slot is encrypted: of two loaders, the one for secure boot is deployed.
    pub encrypted: bool,
    /// The update this belongs to.
    pub transaction: String,
    /// What the board decides.
    pub board: Board,
    /// Number of the root partition that boots now, where it is known: an environment of GRUB that is missing gets it.
    pub boots_now: Option<u32>,
}

impl Request {
    /// The boot files in `/resin-boot`, for the boot partition, as boards without rules of their own have it.
    ///
    /// # Errors
    /// `Io` when the kernel gives no number for a transaction.
    pub fn new(paths: &Paths, root: &Root, purpose: Purpose) -> Result<Request> {
        Ok(Request {
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
}

/// That of the update that runs; without one, that of an earlier attempt of the same deployment.
fn transaction(paths: &Paths, owner: Slot) -> Result<String> {
    // Both are copal's own, and a damaged one says nothing about boot files.
    if let Ok(Some(marker)) = Marker::read(paths) {
        return Ok(marker.transaction);
    }
    match BootfilesRecord::read(paths) {
        Ok(Some(record)) if record.owner == owner => Ok(record.transaction),
        _ => new_transaction(),
    }
}

/// The hook.
///
/// # Errors
/// As for [`deploy`], and those of telling the slots apart.
pub fn run(context: &Context) -> Result<()> {
    let call = Call::of(&context.called, |name| std::env::var_os(name), io::stdin())?;
    let paths = &context.paths;
    let roots = Roots::of(&Facts::gather(paths)?)?;
    let (purpose, root) = match context.during_update {
        true => {
            let other = roots.other()?;
            (purpose_for(paths, other.slot), other)
        }
        false => (Purpose::Undo, &roots.active),
    };
    let mut request = Request::new(paths, root, purpose)?;
    if let Some(root) = &call.root {
        request.source = root.join("resin-boot");
    }
    if call.name != NAMES.first().copied().unwrap_or_default() {
        request.target = paths.plain_boot();
    }
    request.board = call.board;
    request.boots_now = Some(roots.active.index);
    let done = deploy(&request)?;
    tracing::info!("boot files of slot {} on {}: {done}", request.owner, request.target.display());
    Ok(())
}

/// A rollback, too, runs the hooks of the other slot as for an update, but its release must get its boot files back: refused for
/// want of room beside those of the one that failed, they would leave nothing that boots.
fn purpose_for(paths: &Paths, other: Slot) -> Purpose {
    if RollbackRecord::is_at_work(paths, other) { Purpose::Undo } else { Purpose::Update }
}

/// Deploys boot files. May be cut off at any moment and be run again, for the same release or for another.
///
/// # Errors
/// During an update, before anything is changed: `BootFilesInvalid`, `BootPartitionFull`, `StateUnwritable`,
/// `BootMountFailed`, `BootPathEscapes`, `BootNameInvalid`; later `BootCopyFailed`, with new files removed again. An undo goes on
/// with the other files, and its first error comes at the end.
pub fn deploy(request: &Request) -> Result<Deployed> {
    deploy_by(request, &OwnHands)
}

/// [`deploy`] by other means.
///
/// # Errors
/// As for [`deploy`].
pub fn deploy_by(request: &Request, hands: &impl Hands) -> Result<Deployed> {
    mounted(request)?;
    let release = release::list(&request.source)?;
    let choice = rules::choose(release, &request.board, request.encrypted);
    let dest = Destination::open_beside(&request.target, &request.paths.plain_boot())
        .map_err(|e| e.with_hint("look at the kernel log for the boot partition"))?;
    run::sweep(&dest, &choice)?;
    let mut plan = plan::Plan::make(request, &dest, choice);
    if request.purpose == Purpose::Update {
        plan.refuse_problems()?;
        space::check(&plan, &dest, Path::new(&request.board.fingerprint))?;
    }
    if plan.changes() || is_recorded_for_another(request) {
        record(request)?;
    }
    run::Deployment::new(request, &dest, plan, hands).run()
}

/// Brings the fingerprints up to date with the selection, which changes behind `1-bootfiles`: by the hooks of an update, by a
/// verdict, and by the bootloader that counts. So `md5sum -c` accepts them once the device is at rest. Nothing that boots depends on
/// it: what goes wrong is a warning.
pub fn sum_up_selection(paths: &Paths) {
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
            // A shell release's own hook has not looked for what a cut left.
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

/// Without this, files would go into the folder below a boot partition that could not be mounted.
fn mounted(request: &Request) -> Result<()> {
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
    .with_hint("look at the kernel log and at the mount units for the boot partition"))
}

/// With nothing to change, the boot files of this slot are in place all the same.
fn is_recorded_for_another(request: &Request) -> bool {
    matches!(BootfilesRecord::read(&request.paths), Ok(Some(record)) if record.owner != request.owner)
}

/// Before the first write to the boot partition.
fn record(request: &Request) -> Result<()> {
    let record = BootfilesRecord { transaction: request.transaction.clone(), owner: request.owner };
    match record.write(&request.paths) {
        // What is put back must be put back: a device without a state partition is in need of its boot files all the more.
        Err(e) if request.purpose == Purpose::Undo => {
            tracing::warn!("{}; a power cut now would not be noticed at the next boot", e.message());
            Ok(())
        }
        result => result,
    }
}
