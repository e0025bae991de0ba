//! From what was asked to a plan, and from a plan to a receipt.

use std::cell::RefCell;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::libc;

use super::plan::Plan;
use super::receipt::Receipt;
use super::write;
use crate::config::config_json::{self, ConfigJson};
use crate::config::flasher_conf::FlasherConf;
use crate::config::paths::Paths;
use crate::config::pattern;
use crate::disk::io::Io;
use crate::disk::select::ImageSize;
use crate::disk::select::{self, Identity, Rejection, Target, TargetKind};
use crate::disk::{self, Facts};
use crate::error::{Code, Effect, Error, Result};
use crate::image::{self, Checks, Image};
use crate::progress::Progress;
use crate::sys::block::{Access, Device, Medium, sync_name};

/// What was asked for.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Where well-known paths are.
    pub paths: Paths,
    /// The board's configuration, where it is not in its usual place.
    pub conf: Option<PathBuf>,
    /// `CONFIG_PATH` of the environment.
    pub config_json: Option<PathBuf>,
    /// The image, instead of the configured one.
    pub image: Option<PathBuf>,
    /// The target, instead of the configured patterns.
    pub target: Option<PathBuf>,
    /// What is checked before.
    pub checks: Checks,
    /// Only the image is wanted, whatever else the configuration asks for.
    pub image_only: bool,
}

/// A plan with the image it is about.
#[derive(Debug)]
pub struct Prepared {
    /// Everything that will be written.
    pub plan: Plan,
    image: Image,
}

/// How long something else, most of all udev, may keep the disk busy before it is opened and after it was written.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where the target comes from.
#[derive(Debug)]
enum TargetSource {
    Named(PathBuf),
    /// And the disks whose rejection has been logged: a run looks again while it waits, and before it writes.
    Patterns(String, RefCell<Vec<Rejection>>),
}

impl TargetSource {
    fn choose(&self, paths: &Paths, facts: &Facts, image: &Path, size: Option<ImageSize>) -> Result<Target> {
        match self {
            TargetSource::Named(path) => select::named(path, facts, Some(image), size),
            TargetSource::Patterns(list, told) => {
                let patterns = pattern::expand(list)?;
                let dev = paths.at("/dev");
                let candidates =
                    select::candidates(&patterns, paths, |p| p.matches(&dev), pattern::Pattern::is_md)?;
                Ok(select::choose_again(&candidates, facts, size, &mut told.borrow_mut())?.target)
            }
        }
    }
}

impl Request {
    /// What the environment asks for, with everything in its usual place.
    #[must_use]
    pub fn of_environment(paths: Paths) -> Self {
        let config_json = std::env::var_os("CONFIG_PATH").filter(|p| !p.is_empty()).map(Into::into);
        Request { paths, config_json, ..Request::default() }
    }

    /// Where the board's configuration is.
    #[must_use]
    pub fn flasher_conf(&self) -> PathBuf {
        self.conf.clone().unwrap_or_else(|| self.paths.flasher_conf())
    }

    /// Whether a whole installation is asked for, not the image alone: that takes a configuration, and a disk.
    #[must_use]
    pub fn is_installation(&self) -> bool {
        let named = self.image.is_some() && self.target.is_some() && self.conf.is_none();
        let to_a_file = self.target.as_ref().is_some_and(|t| !is_block_device(t));
        !(self.image_only || named || to_a_file)
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

/// Everything that a run starts from, read and found valid.
#[derive(Debug)]
pub struct Inputs {
    /// The board's configuration; `None` where image and target were both named.
    pub conf: Option<FlasherConf>,
    /// The owner's configuration, where there is one.
    pub config: Option<ConfigJson>,
    wanted: TargetSource,
    image: Image,
}

impl Inputs {
    /// Reads and checks configuration and image.
    ///
    /// # Errors
    /// Whatever makes the flash impossible; nothing has been written.
    pub fn read(request: &Request) -> Result<Inputs> {
        let conf = match (&request.conf, &request.image, &request.target) {
            (None, Some(_), Some(_)) => None,
            _ => Some(FlasherConf::load(&request.flasher_conf())?),
        };
        if let Some(conf) = conf.as_ref().filter(|_| !request.image_only) {
            conf.check_medium(&request.paths.boot())?;
        }
        let config = if conf.is_some() { config_json(request)? } else { None };
        let wanted = match &request.target {
            Some(path) => TargetSource::Named(path.clone()),
            None => TargetSource::Patterns(
                configured_patterns(conf.as_ref(), config.as_ref())?,
                RefCell::default(),
            ),
        };
        let image = match (&request.image, conf.as_ref().and_then(|c| c.balena_image.as_deref())) {
            (Some(path), _) => Image::open(path)?,
            (None, Some(name)) => image::find(&request.paths, name)?,
            (None, None) => {
                return Err(Error::new(
                    Code::ImageMissing,
                    "no image is named: the configuration has no BALENA_IMAGE",
                )
                .with_hint(image::CORRECT_NAME));
            }
        };
        Ok(Inputs { conf, config, wanted, image })
    }

    /// The target as far as it can be told without the image's size.
    ///
    /// # Errors
    /// Those of [`select::choose`] and [`select::named`].
    pub fn target(&self, paths: &Paths) -> Result<Target> {
        self.wanted.choose(paths, &Facts::gather(paths)?, &self.image.path, None)
    }

    /// Looks at image and target, and decides what will be written. Writes nothing.
    ///
    /// # Errors
    /// Whatever makes the flash impossible; nothing has been written.
    pub fn prepare(self, request: &Request, progress: &dyn Progress) -> Result<Prepared> {
        let Inputs { conf, wanted, image, .. } = self;
        let paths = &request.paths;
        // Cheap refusals first: decoding a large image takes minutes. Then once more, with its size, on fresh facts.
        let facts = Facts::gather(paths)?;
        let first = wanted.choose(paths, &facts, &image.path, None)?;
        if conf.is_some() {
            refuse_foreign_boot(request, &facts)?;
        }
        let mut checks = request.checks.clone();
        checks.at_most = (first.kind == TargetKind::Block).then_some(first.size);
        let seen = image::inspect(&image, &checks, progress)?;
        let facts = Facts::gather(paths)?;
        let mut target = wanted.choose(paths, &facts, &image.path, Some(seen.size))?;
        same_target(&first, &target)?;
        if let Some(table) = &seen.table {
            match target.kind {
                TargetKind::Block => match image::check_sector_size(table, target.block_size, &target.name) {
                    Err(e) if request.checks.force_raw => {
                        tracing::warn!("{}; written all the same", e.message());
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
        let plan = Plan::new((&image).into(), seen, target, old.as_ref().map(|d| d as &dyn Medium))?;
        Ok(Prepared { plan, image })
    }
}

/// Reads and checks everything and decides what will be written. Writes nothing.
///
/// # Errors
/// Whatever makes the flash impossible; nothing has been written.
pub fn prepare(request: &Request, progress: &dyn Progress) -> Result<Prepared> {
    Inputs::read(request)?.prepare(request, progress)
}

impl Prepared {
    /// Executes the plan.
    ///
    /// # Errors
    /// Refusals, with nothing written; then those of [`write::execute`].
    pub fn run(&self, paths: &Paths, progress: &dyn Progress) -> Result<Receipt> {
        let Prepared { plan, image } = self;
        let started = SystemTime::now();
        let made = plan.target.kind == TargetKind::File && !plan.target.node.exists();
        let device = open_exclusively(&plan.target)?;
        check_identity(&plan.target, &device, paths)?;
        let outcome = write::execute(plan, &|| image.source(), &device, progress).inspect_err(|e| {
            // A refusal leaves nothing behind.
            if made && e.effect() == Effect::Refused {
                drop(std::fs::remove_file(&plan.target.node));
            }
        })?;
        let reread = match plan.target.kind {
            TargetKind::Block => Some(reread(&plan.target, &device)),
            TargetKind::File => {
                // A file that was made is as durable as its name. Not every file system can flush a folder.
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

/// Another program may have replaced the file meanwhile: then the image is in a file that has no name any more, or another one.
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

/// Makes the kernel take the new partition table. The image is there and right, whatever comes of it.
fn reread(target: &Target, device: &Device) -> bool {
    let name = target.name.display();
    match device.reread_partitions(TIMEOUT) {
        Ok(()) => return true,
        // A loop device, or another disk that has no partitions.
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
            tracing::info!("{name} has no partitions for the kernel: {e}");
        }
        Err(e) => tracing::warn!(
            "the kernel goes on with the old partition table of {name}: {e}; do not mount its partitions before a restart"
        ),
    }
    false
}

/// Compares the target with the image without writing.
///
/// # Errors
/// [`Code::TargetDiffers`] with the first place; or image or target cannot be read.
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

/// The device's `config.json`, valid; `None` where there is none. One that `CONFIG_PATH` names, that a flasher
/// medium makes, or that an installation copies, must be there.
fn config_json(request: &Request) -> Result<Option<ConfigJson>> {
    let path = config_json::locate(request.config_json.as_deref(), &request.paths);
    match ConfigJson::load(&path) {
        // Its `target_devices` has the last word: only where none was promised may there be none.
        Err(e) if e.code() == Code::ConfigJsonMissing && path == request.paths.config_json() => {
            if request.config_json.is_some() || request.is_installation() { Err(e) } else { Ok(None) }
        }
        other => other.map(Some),
    }
}

fn configured_patterns(conf: Option<&FlasherConf>, config: Option<&ConfigJson>) -> Result<String> {
    let overriding = config.map(ConfigJson::installer_target_devices).transpose()?.flatten();
    let configured = conf.and_then(|c| c.internal_device.as_deref());
    overriding.or(configured).map(str::to_owned).ok_or_else(|| {
        let message = "neither the configuration nor config.json says which disk is the internal one";
        Error::new(Code::NoTargetPattern, message)
    })
}

/// Bootloader files and `config.json` of another flasher, which sits on the internal disk, are not to be used.
fn refuse_foreign_boot(request: &Request, facts: &Facts) -> Result<()> {
    match select::medium_boot_partition(facts) {
        Some(elsewhere) if request.config_json.is_none() || request.is_installation() => {
            let mounted = elsewhere.mounted.display();
            let message =
                format!("/mnt/boot is {mounted}, which is not on the disk that this system runs from");
            Err(Error::new(Code::MediumBootElsewhere, message).object(mounted))
        }
        _ => Ok(()),
    }
}

/// The target may not have changed while the image was checked, which can take minutes.
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

/// Opens for writing. udev holds the lock while it probes a disk that has just appeared or was just closed.
fn open_exclusively(target: &Target) -> Result<Device> {
    let access = match target.kind {
        TargetKind::Block => Access::ExclusiveDisk,
        TargetKind::File => Access::ExclusiveFile,
    };
    let end = Instant::now() + TIMEOUT;
    loop {
        match Device::open(&target.node, access) {
            Err(e) if is_busy(&e) && Instant::now() < end => std::thread::sleep(Duration::from_millis(100)),
            Err(e) if target.kind == TargetKind::Block && is_gone(&e) => {
                let name = target.name.display();
                let message = format!("cannot open {name}: it has gone since it was checked");
                return Err(Error::new(Code::TargetVanished, message).object(name).because(e));
            }
            other => return other.map_err(|e| cannot_open(&target.name, e)),
        }
    }
}

/// Opens a disk of which something may still be in use, for clearing what it boots from.
pub(crate) fn open_to_undo(target: &Target) -> Result<Device> {
    match open_exclusively(target) {
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

/// The disk that was checked must be the one that is open now: names move when hardware comes and goes.
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
