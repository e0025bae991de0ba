//! From an image and a target to a plan, and from a plan to a receipt.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nix::libc;

use super::plan::Plan;
use super::receipt::Receipt;
use super::write;
use crate::config::paths::Paths;
use crate::disk::io::Io;
use crate::disk::select::{Identity, ImageSize, Target, TargetKind};
use crate::disk::{self, Facts};
use crate::error::{Code, Effect, Error, Result};
use crate::image::{self, Checks, Image};
use crate::progress::Progress;
use crate::sys::block::{Access, Device, Medium, sync_name};
use crate::sys::signal::SignalGuard;

#[derive(Debug)]
pub struct Prepared {
    pub plan: Plan,
    image: Image,
}

/// How long another program, mostly udev, may keep the disk busy, before it is opened and after it was written.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Chooses the target among the disks of these facts, for an image of this size, where it is known.
pub(crate) type ChooseTarget<'a> = &'a dyn Fn(&Facts, Option<ImageSize>) -> Result<Target>;

/// Checks image and target, and makes the plan. Writes nothing.
pub(crate) fn prepare(
    paths: &Paths,
    image: Image,
    choose: ChooseTarget<'_>,
    checks: &Checks,
    progress: &dyn Progress,
) -> Result<Prepared> {
    // Quick refusals come first: decoding a large image takes minutes. Then again, with its size, on fresh facts.
    let first = choose(&Facts::gather(paths)?, None)?;
    let mut checks = checks.clone();
    checks.at_most = (first.kind == TargetKind::Block).then_some(first.size);
    let inspection = image::inspect(&image, &checks, progress)?;
    let mut target = choose(&Facts::gather(paths)?, Some(inspection.size))?;
    same_target(&first, &target)?;
    if let Some(table) = &inspection.table {
        match target.kind {
            TargetKind::Block => match image::check_sector_size(table, target.block_size, &target.name) {
                Err(e) if checks.force_raw => {
                    tracing::warn!("{}; it is written because the caller forces it", e.message());
                }
                other => other?,
            },
            // A file has no sectors of its own.
            TargetKind::File => target.block_size = table.sector_size,
        }
    }
    let old = match target.kind {
        TargetKind::File if target.size == 0 => None,
        _ => Some(open(&target, Access::Read)?),
    };
    let plan = Plan::new((&image).into(), inspection, target, old.as_ref().map(|d| d as &dyn Medium))?;
    Ok(Prepared { plan, image })
}

/// From now on a signal ends the job between two pieces of its work, by an error that says what it leaves.
pub fn hold_signals() -> Result<SignalGuard> {
    SignalGuard::begin().map_err(|e| Error::new(Code::Io, "cannot prepare for signals").because(e))
}

/// Says so in the error of a signal that came early enough.
pub(crate) fn nothing_written(e: Error) -> Error {
    match (e.code(), e.effect()) {
        (Code::Interrupted, Effect::Refused) => e.and_also("nothing was written"),
        _ => e,
    }
}

impl Prepared {
    pub fn run(&self, paths: &Paths, progress: &dyn Progress) -> Result<Receipt> {
        let Prepared { plan, image } = self;
        let started = SystemTime::now();
        let made = plan.target.kind == TargetKind::File && !plan.target.node.exists();
        let name = plan.target.name.display();
        let heed = || image::heed(format_args!("while {name} was busy")).map_err(|e| e.object(&name));
        let device = open_exclusively(&plan.target, &heed)?;
        check_identity(&plan.target, &device, paths)?;
        let outcome = write::execute(plan, &|| image.source(), &device, progress).inspect_err(|e| {
            if made && e.effect() == Effect::Refused {
                drop(std::fs::remove_file(&plan.target.node));
            }
        })?;
        let reread = match plan.target.kind {
            TargetKind::Block => Some(reread(&plan.target, &device)),
            TargetKind::File => {
                // A new file is only as durable as its name. Not every file system can flush a folder.
                if let Err(e) = sync_name(&plan.target.node) {
                    tracing::warn!("the folder of {} cannot be flushed: {e}", plan.target.name.display());
                }
                check_name(&plan.target, &device)?;
                None
            }
        };
        Ok(Receipt::new(plan, &outcome, started, reread))
    }
}

/// If another program replaced the file meanwhile, the image is in a file without a name, or with another one.
fn check_name(target: &Target, device: &Device) -> Result<()> {
    let name = target.name.display();
    let error = |message: String| {
        Error::new(Code::TargetChanged, message)
            .object(&name)
            .with_hint("stop the program that replaces this file, and flash again")
            .after_write()
    };
    match device.is_at(&target.node) {
        Ok(true) => Ok(()),
        Ok(false) => {
            Err(error(format!("{name} was replaced, renamed or removed while the image was written to it")))
        }
        Err(e) => {
            Err(error(format!("cannot find {name} again after the image was written to it")).because(e))
        }
    }
}

/// Makes the kernel read the new partition table. A failure does not affect the image.
fn reread(target: &Target, device: &Device) -> bool {
    let name = target.name.display();
    match device.reread_partitions(BUSY_TIMEOUT) {
        Ok(()) => return true,
        // A loop device, or another disk without partitions.
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
            tracing::info!("{name} cannot have partitions: {e}");
        }
        Err(e) => tracing::warn!(
            "the kernel keeps the old partition table of {name}: {e}; do not mount its partitions before a restart"
        ),
    }
    false
}

pub fn verify(image: &Path, target: &Path, progress: &dyn Progress) -> Result<super::compare::Comparison> {
    let image = Image::open(image)?;
    // The table only names partitions in the message.
    let (size, table) = image::glance(&image);
    let device = Device::open(target, Access::Read).map_err(|e| cannot_open(target, e))?;
    let found = super::compare::compare(&|| image.source(), size, &Io::new(&device, target), progress)?;
    let Some(at) = found.first_difference else { return Ok(found) };
    let place = write::place(table.as_ref(), table.as_ref().map_or(512, |t| t.sector_size), at);
    let (target, image) = (target.display(), image.path.display());
    let chunks = found.differing_chunks;
    Err(Error::new(
        Code::TargetDiffers,
        format!("{target} differs from {image}: first at {place}; {chunks} chunks of 1 MiB are different"),
    )
    .object(target))
}

/// The target must not change while the image is checked, which can take minutes.
fn same_target(first: &Target, now: &Target) -> Result<()> {
    let same = match (first.identity(), now.identity()) {
        (Some(first), Some(now)) => first.is_still(&now),
        (first, now) => first == now,
    };
    if first.node == now.node && same {
        return Ok(());
    }
    let (was, is) = (first.name.display(), now.name.display());
    let message = format!(
        "the target changed while the image was checked: it was {was}, {} bytes, and is {is}, {} bytes",
        first.size, now.size
    );
    Err(Error::new(Code::TargetChanged, message).object(is))
}

fn open(target: &Target, access: Access) -> Result<Device> {
    Device::open(&target.node, access).map_err(|e| cannot_open(&target.name, e))
}

/// udev locks a disk while it probes it, after it appears and after it is closed. Meanwhile `go_on` may end the wait.
fn open_exclusively(target: &Target, go_on: &dyn Fn() -> Result<()>) -> Result<Device> {
    let access = match target.kind {
        TargetKind::Block => Access::ExclusiveDisk,
        TargetKind::File => Access::ExclusiveFile,
    };
    let end = Instant::now() + BUSY_TIMEOUT;
    loop {
        match Device::open(&target.node, access) {
            Err(e) if is_busy(&e) && Instant::now() < end => {
                go_on()?;
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(e) if target.kind == TargetKind::Block && is_gone(&e) => {
                let name = target.name.display();
                let message = format!("cannot open {name}: it was removed after the check");
                return Err(Error::new(Code::TargetVanished, message).object(name).because(e));
            }
            other => return other.map_err(|e| cannot_open(&target.name, e)),
        }
    }
}

/// Opens a disk to clear its boot data. Parts of the disk may still be in use.
pub(crate) fn open_to_undo(target: &Target) -> Result<Device> {
    match open_exclusively(target, &|| Ok(())) {
        Err(e) if e.code() == Code::Busy => open(target, Access::Undo),
        other => other,
    }
}

fn is_busy(e: &std::io::Error) -> bool {
    matches!(e.kind(), std::io::ErrorKind::ResourceBusy | std::io::ErrorKind::WouldBlock)
}

fn is_gone(e: &std::io::Error) -> bool {
    matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::InvalidInput)
        || matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM))
}

fn cannot_open(target: &Path, cause: std::io::Error) -> Error {
    use std::io::ErrorKind;
    let name = target.display();
    let code = match cause.kind() {
        ErrorKind::PermissionDenied => Code::NotRoot,
        ErrorKind::ResourceBusy | ErrorKind::WouldBlock => Code::Busy,
        ErrorKind::NotFound | ErrorKind::InvalidInput => Code::TargetMissing,
        ErrorKind::ReadOnlyFilesystem => Code::TargetReadOnly,
        _ => Code::Io,
    };
    Error::new(code, format!("cannot open {name}")).object(name).because(cause)
}

/// The open disk must be the checked one: names change when hardware comes and goes.
fn check_identity(target: &Target, device: &Device, paths: &Paths) -> Result<()> {
    let Some(dev) = device.dev() else { return Ok(()) };
    let size = device.size().map_err(|e| cannot_open(&target.name, e))?;
    let serial = disk::serial_of(paths, dev);
    target.reverify(&Identity { dev, size, serial })?;
    if device.is_read_only().map_err(|e| cannot_open(&target.name, e))? {
        let name = target.name.display();
        return Err(
            Error::new(Code::TargetReadOnly, format!("cannot flash {name}: it is read-only")).object(name)
        );
    }
    Ok(())
}
