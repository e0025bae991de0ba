//! From an image and a target to a plan, and from a plan to a receipt.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::libc;

use super::former::Content;
use super::plan::Plan;
use super::receipt::Receipt;
use super::write;
use crate::config::paths::Paths;
use crate::disk::io::Io;
use crate::disk::select::{Identity, ImageSize, Target, TargetKind, refuse_without_space};
use crate::disk::{self, Facts};
use crate::error::{Code, Effect, Error, Result};
use crate::image::chunks::{Source, side_by_side, workers};
use crate::image::digest::{CHUNK, CHUNK_LEN, Digest256, is_zero};
use crate::image::{self, Checks, Image, Signer};
use crate::progress::{Progress, Stage, Work};
use crate::sys::block::{Access, Device, Medium, sync_name};
use crate::sys::buffer::Buffer;
use crate::sys::file::is_same;
use crate::sys::hold::{Hold, lock_holder};
use crate::sys::signal::SignalGuard;

#[derive(Debug)]
pub struct Prepared {
    pub plan: Plan,
    /// How long the check of the image took, where it was read as a whole.
    pub(super) checked: Option<Duration>,
    image: Image,
    /// The target's lock, until it is opened.
    hold: Mutex<Option<Hold>>,
    /// Whether the target is a file that has to be made.
    is_new: bool,
}

/// How long another program, mostly udev, may keep the disk busy, before it is opened and after it was written.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Chooses the target among the disks of these facts, for an image of this size, where it is known.
pub(crate) type ChooseTarget<'a> = &'a dyn Fn(&Facts, Option<ImageSize>) -> Result<Target>;

/// Decides, before the image is read, whether what the target holds may be lost. The target is locked.
pub(crate) type Agree<'a> = &'a dyn Fn(&Target, &Content) -> Result<()>;

/// Checks image and target, and makes the plan. Writes nothing. `agree` is not asked about a file that has to be made.
pub(crate) fn prepare(
    paths: &Paths,
    image: Image,
    choose: ChooseTarget<'_>,
    agree: Option<Agree<'_>>,
    checks: &Checks,
    progress: &dyn Progress,
) -> Result<Prepared> {
    // Quick refusals come first: decoding a large image takes minutes. Then again, with its size, on fresh facts.
    let first = choose(&Facts::gather(paths)?, None)?;
    refuse_companion(&image, &first)?;
    let hold = hold(&first)?;
    if let (Some(agree), true) = (agree, hold.is_some()) {
        agree(&first, &Content::of(&Io::new(&open(&first, Access::Read)?, &first.name)))
            .map_err(|e| untouched(Some(&first), e))?;
    }
    progress.plan(&[Stage::Check, Stage::Write, Stage::Verify].map(|stage| Work {
        stage,
        total: None,
        zeroes: 0,
    }));
    time_verification(&first, progress);
    let mut checks = checks.clone();
    checks.at_most = (first.kind == TargetKind::Block).then_some(first.size);
    let began = Instant::now();
    let inspection = image::inspect(&image, &checks, progress).map_err(|e| untouched(Some(&first), e))?;
    let checked = inspection.digests.is_some().then(|| began.elapsed());
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
    if let (None, Some(data)) = (&hold, inspection.data) {
        refuse_without_space(&target, data)?;
    }
    let old = match target.kind {
        TargetKind::File if target.size == 0 => None,
        _ => Some(open(&target, Access::Read)?),
    };
    let mut plan = Plan::new((&image).into(), inspection, target, old.as_ref().map(|d| d as &dyn Medium))?;
    plan.image.zeroes = image::estimate_zeroes(&image, plan.image.chunks.as_deref());
    let is_new = hold.is_none();
    Ok(Prepared { plan, checked, image, hold: Mutex::new(hold), is_new })
}

/// The image's own file is refused with the choice of the target.
fn refuse_companion(image: &Image, target: &Target) -> Result<()> {
    let beside = image::companions(&image.path).into_iter().find(|beside| is_same(beside, &target.node));
    let Some(beside) = beside else { return Ok(()) };
    let (name, beside) = (target.name.display(), beside.display());
    let message = format!("cannot write {name}: it is {beside}, which belongs to the image");
    Err(Error::new(Code::TargetIsImage, message).object(name))
}

/// Reads and digests a little of what the target holds, as the verification will, so that the time left is known before that begins. Without
/// an answer it is estimated otherwise.
fn time_verification(target: &Target, progress: &dyn Progress) {
    const MOST_CHUNKS: u64 = 20;
    const LIMIT: Duration = Duration::from_millis(400);
    // Next to nothing of a small target.
    let chunks = (target.size / CHUNK / 64).min(MOST_CHUNKS);
    let Ok(device) = Device::open(&target.node, Access::Read) else { return };
    if device.drop_cache().is_err() {
        return;
    }
    let next = AtomicU64::new(0);
    let started = Instant::now();
    let read = |end: u64| {
        let (done, began) = (AtomicU64::new(0), Instant::now());
        let each = side_by_side(workers(), &|_| {
            let mut buffer = Buffer::zeroed(CHUNK_LEN);
            while next.load(Ordering::Relaxed) < end && started.elapsed() < LIMIT {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                // A disk may show empty blocks without reading its medium.
                if !matches!(device.read_at(&mut buffer, chunk * CHUNK), Ok(CHUNK_LEN)) || is_zero(&buffer) {
                    break;
                }
                std::hint::black_box(Digest256::of(&buffer));
                done.fetch_add(CHUNK, Ordering::Relaxed);
            }
            Ok(())
        });
        each.map(|()| (done.into_inner(), began.elapsed()))
    };
    // The first bytes come faster than the rest: the disk has read ahead.
    if let (Ok(_), Ok((bytes, time))) = (read(chunks / 5), read(chunks)) {
        progress.measured(Stage::Verify, bytes, time);
    }
}

/// From now on a signal ends the job between two pieces of its work, by an error that says what it leaves.
pub fn hold_signals() -> Result<SignalGuard> {
    SignalGuard::begin().map_err(cannot_hold_signals)
}

pub(crate) fn cannot_hold_signals(e: std::io::Error) -> Error {
    Error::new(Code::Io, "cannot prepare for signals").because(e)
}

pub(crate) const NOTHING_WRITTEN: &str = "nothing was written";

/// Says so in the error of a flash that was stopped early enough, unless it says so already.
pub(crate) fn nothing_written(e: Error) -> Error {
    untouched(None, e)
}

/// [`nothing_written`], with the disk where it is known: the operator who stops a flasher must know its state.
pub(crate) fn untouched(target: Option<&Target>, e: Error) -> Error {
    let was_stopped = matches!(e.code(), Code::Interrupted | Code::Aborted) && e.effect() == Effect::Refused;
    if !was_stopped || e.message().contains(NOTHING_WRITTEN) {
        return e;
    }
    let place = target.map(|t| format!(" to {}", t.name.display())).unwrap_or_default();
    e.and_also(&format!("{NOTHING_WRITTEN}{place}"))
}

impl Prepared {
    /// Refuses an image that has changed since it was checked, before the target is touched.
    pub(crate) fn refuse_changed_image(&self) -> Result<()> {
        self.image.refuse_changed()
    }

    /// Opens the checked target exclusively. Refuses any other disk or file in its place.
    pub(crate) fn open_target(&self, paths: &Paths) -> Result<Device> {
        let target = &self.plan.target;
        let hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner).take();
        let device = match hold {
            Some(hold) => {
                let open = || Device::open_held(&target.node, exclusive(target.kind), Some(&hold));
                opened(target, when_free(&|| heed(target), &open)?)?.keep(hold)
            }
            None if self.is_new && target.node.exists() => {
                let name = target.name.display();
                let message = format!("{name} was made by another program while the image was checked");
                return Err(Error::new(Code::TargetChanged, message).object(name));
            }
            None => open_exclusively(target, &|| heed(target))?,
        };
        check_identity(target, &device, paths)?;
        Ok(device)
    }

    /// The image from its beginning.
    pub(crate) fn source(&self) -> Result<Box<dyn Source>> {
        self.image.source()
    }

    /// Refuses an image that the holder of the medium's certificate has not signed, and one of which only the beginning was read.
    pub(crate) fn check_signature(&mut self, paths: &Paths) -> Result<()> {
        if self.plan.image.signed.is_none() {
            let digest = self.plan.image.sha256.ok_or_else(|| {
                let message = "cannot install encrypted: the signature of the image was not checked, because only its beginning was read";
                Error::new(Code::SignatureMissing, message)
                    .object(self.image.path.display())
                    .with_hint("flash without --single-pass")
            })?;
            self.plan.image.signed = Some(Signer::of_medium(paths)?.check(&self.image, digest)?);
        }
        Ok(())
    }

    pub fn run(&self, paths: &Paths, progress: &dyn Progress) -> Result<Receipt> {
        let Prepared { plan, checked, image, .. } = self;
        let started = SystemTime::now();
        let made = plan.target.kind == TargetKind::File && !plan.target.node.exists();
        self.refuse_changed_image()?;
        let device = self.open_target(paths)?;
        let outcome = write::execute(plan, &|| image.source(), &device, progress).inspect_err(|e| {
            // After a signal, the next flash continues with this file. Another program may have put its own file in the place.
            if made && e.code() != Code::Interrupted && device.is_at(&plan.target.node).is_ok_and(|same| same)
            {
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
        Ok(Receipt::new(plan, &outcome, *checked, started, reread))
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

/// Ends a wait when a signal has come.
fn heed(target: &Target) -> Result<()> {
    let name = target.name.display();
    image::heed(format_args!("while {name} was busy")).map_err(|e| e.object(name))
}

fn exclusive(kind: TargetKind) -> Access {
    match kind {
        TargetKind::Block => Access::ExclusiveDisk,
        TargetKind::File => Access::ExclusiveFile,
    }
}

/// Before the image is read, which takes minutes: a target in use is refused, and a second flash of the same target too. `None` for a file that
/// has to be made.
fn hold(target: &Target) -> Result<Option<Hold>> {
    if target.kind == TargetKind::File && !target.node.exists() {
        return Ok(None);
    }
    let hold = when_free(&|| heed(target), &|| Hold::take(&target.node, target.kind == TargetKind::Block))?;
    hold.map(Some).map_err(|e| cannot_open(&target.name, e))
}

fn open_exclusively(target: &Target, go_on: &dyn Fn() -> Result<()>) -> Result<Device> {
    opened(target, when_free(go_on, &|| Device::open(&target.node, exclusive(target.kind)))?)
}

fn opened(target: &Target, device: std::io::Result<Device>) -> Result<Device> {
    match device {
        Err(e) if target.kind == TargetKind::Block && is_gone(&e) => {
            let name = target.name.display();
            let message = format!("cannot open {name}: it was removed after the check");
            Err(Error::new(Code::TargetVanished, message).object(name).because(e))
        }
        other => other.map_err(|e| cannot_open(&target.name, e)),
    }
}

/// udev locks a disk while it probes it, after it appears and after it is closed. Meanwhile `go_on` may end the wait.
fn when_free<T>(
    go_on: &dyn Fn() -> Result<()>,
    open: &dyn Fn() -> std::io::Result<T>,
) -> Result<std::io::Result<T>> {
    let end = Instant::now() + BUSY_TIMEOUT;
    loop {
        match open() {
            Err(e) if is_busy(&e) && Instant::now() < end => {
                go_on()?;
                std::thread::sleep(Duration::from_millis(100));
            }
            other => return Ok(other),
        }
    }
}

/// Opens a disk to clear its boot data. Parts of the disk may still be in use. It must be the one that was written.
pub(crate) fn open_to_undo(target: &Target, paths: &Paths) -> Result<Device> {
    let device = match open_exclusively(target, &|| Ok(())) {
        Err(e) if e.code() == Code::Busy => open(target, Access::Undo)?,
        other => other?,
    };
    check_identity(target, &device, paths)?;
    Ok(device)
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
    let error = Error::new(code, format!("cannot open {name}")).object(name).because(cause);
    match lock_holder(target).filter(|_| code == Code::Busy) {
        Some((pid, program)) => error.and_also(&format!("process {pid} ({program}) holds it")),
        None => error,
    }
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
