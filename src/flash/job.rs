//! From a request to a plan, and from a plan to a receipt.

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
use crate::sys::signal::SignalGuard;

#[derive(Debug, Clone, Default)]
pub struct Request {
    pub paths: Paths,
    pub conf: Option<PathBuf>,
    pub config_json: Option<PathBuf>,
    pub image: Option<PathBuf>,
    pub target: Option<PathBuf>,
    pub checks: Checks,
    /// Write the image alone, whatever the configuration asks for.
    pub image_only: bool,
}

#[derive(Debug)]
pub struct Prepared {
    pub plan: Plan,
    image: Image,
}

/// How long another program, mostly udev, may keep the disk busy, before it is opened and after it was written.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum TargetSource {
    Named(PathBuf),
    /// With the rejections that were logged: a run repeats the choice while it waits, and before it writes.
    Patterns(String, RefCell<Vec<Rejection>>),
}

impl TargetSource {
    fn choose(&self, paths: &Paths, facts: &Facts, image: &Path, size: Option<ImageSize>) -> Result<Target> {
        match self {
            TargetSource::Named(path) => select::named(path, facts, Some(image), size),
            TargetSource::Patterns(list, logged) => {
                let patterns = pattern::expand(list)?;
                let dev = paths.at("/dev");
                let candidates =
                    select::candidates(&patterns, paths, |p| p.matches(&dev), pattern::Pattern::is_md)?;
                Ok(select::choose_again(&candidates, facts, size, &mut logged.borrow_mut())?.target)
            }
        }
    }
}

impl Request {
    /// From the environment, with everything in its usual place.
    #[must_use]
    pub(crate) fn of_environment(paths: Paths) -> Self {
        let config_json = std::env::var_os("CONFIG_PATH").filter(|p| !p.is_empty()).map(Into::into);
        Request { paths, config_json, ..Request::default() }
    }

    #[must_use]
    pub fn flasher_conf(&self) -> PathBuf {
        self.conf.clone().unwrap_or_else(|| self.paths.flasher_conf())
    }

    /// A whole installation needs a configuration and a disk.
    #[must_use]
    pub(crate) fn is_installation(&self) -> bool {
        let named = self.image.is_some() && self.target.is_some() && self.conf.is_none();
        let to_a_file = self.target.as_ref().is_some_and(|t| !is_block_device(t));
        !(self.image_only || named || to_a_file)
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device())
}

#[derive(Debug)]
pub(crate) struct Inputs {
    /// `None` where image and target were both named.
    pub conf: Option<FlasherConf>,
    /// `None` where there is no `config.json`.
    pub config: Option<ConfigJson>,
    source: TargetSource,
    image: Image,
}

impl Inputs {
    pub(crate) fn read(request: &Request) -> Result<Inputs> {
        let conf = match (&request.conf, &request.image, &request.target) {
            (None, Some(_), Some(_)) => None,
            _ => Some(FlasherConf::load(&request.flasher_conf())?),
        };
        if let Some(conf) = conf.as_ref().filter(|_| !request.image_only) {
            conf.check_medium(&request.paths.boot())?;
        }
        let config = if conf.is_some() { config_json(request)? } else { None };
        let source = match &request.target {
            Some(path) => TargetSource::Named(path.clone()),
            None => TargetSource::Patterns(
                configured_patterns(conf.as_ref(), config.as_ref())?,
                RefCell::default(),
            ),
        };
        let image = match (&request.image, conf.as_ref().and_then(|c| c.balena_image.as_deref())) {
            (Some(path), _) => Image::open_named(path)?,
            (None, Some(name)) => image::find(&request.paths, name)?,
            (None, None) => {
                return Err(Error::new(
                    Code::ImageMissing,
                    "no image is named: the configuration has no BALENA_IMAGE",
                )
                .with_hint(image::CORRECT_NAME));
            }
        };
        Ok(Inputs { conf, config, source, image })
    }

    pub(crate) fn target(&self, paths: &Paths) -> Result<Target> {
        self.source.choose(paths, &Facts::gather(paths)?, &self.image.path, None)
    }

    /// Checks image and target, and makes the plan. Writes nothing.
    pub(crate) fn prepare(self, request: &Request, progress: &dyn Progress) -> Result<Prepared> {
        let Inputs { conf, source, image, .. } = self;
        let paths = &request.paths;
        // Quick refusals come first: decoding a large image takes minutes. Then again, with its size, on fresh facts.
        let facts = Facts::gather(paths)?;
        let first = source.choose(paths, &facts, &image.path, None)?;
        if conf.is_some() {
            refuse_foreign_boot(request, &facts)?;
        }
        let mut checks = request.checks.clone();
        checks.at_most = (first.kind == TargetKind::Block).then_some(first.size);
        let seen = image::inspect(&image, &checks, progress)?;
        let facts = Facts::gather(paths)?;
        let mut target = source.choose(paths, &facts, &image.path, Some(seen.size))?;
        same_target(&first, &target)?;
        if let Some(table) = &seen.table {
            match target.kind {
                TargetKind::Block => match image::check_sector_size(table, target.block_size, &target.name) {
                    Err(e) if request.checks.force_raw => {
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
        let plan = Plan::new((&image).into(), seen, target, old.as_ref().map(|d| d as &dyn Medium))?;
        Ok(Prepared { plan, image })
    }
}

pub fn prepare(request: &Request, progress: &dyn Progress) -> Result<Prepared> {
    Inputs::read(request)?.prepare(request, progress)
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
    match device.reread_partitions(TIMEOUT) {
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

/// It must exist where `CONFIG_PATH` names it, or where an installation copies it.
fn config_json(request: &Request) -> Result<Option<ConfigJson>> {
    let path = config_json::locate(request.config_json.as_deref(), &request.paths);
    match ConfigJson::load(&path) {
        // Its `target_devices` overrides the configuration, so it may be missing only where nothing requires it.
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

/// Refuses bootloader files and `config.json` of another flasher on the internal disk.
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
    let end = Instant::now() + TIMEOUT;
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
