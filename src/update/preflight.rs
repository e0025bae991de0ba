//! What must hold before an update changes anything.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, Statvfs, statvfs};

use super::scratch::Scratch;
use super::sysroot::Sysroot;
use super::{Request, Source};
use crate::boot_state::Backend;
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::engine::Engine;
use crate::engine::archive::{self, Archive, Content, Machine};
use crate::error::{Code, Error, Result};
use crate::slot::{Root, Roots};
use crate::state::files;
use crate::state::phase::{self, Phase, Welcome};
use crate::sys::mount;

/// Room on the state partition for the files of an update, in bytes.
pub(crate) const STATE: u64 = 256 << 10;

/// How many times the bytes of the slot are read at most of an archive: its layers are in it twice, packed and not, and headers and
/// padding that take no space in the slot come on top.
const MOST_UNPACKED: u64 = 4;

/// What is known once an update may begin.
pub struct Ready {
    /// The engine, whose data is in the slot.
    pub engine: Engine,
    /// The folder that the engine calls its own, by its own name.
    pub data_root: PathBuf,
    /// The slot.
    pub sysroot: Sysroot,
    /// The device; `None` where an image is being built.
    pub device: Option<Device>,
}

/// The device that is updated.
pub struct Device {
    /// The root partitions.
    pub roots: Roots,
    /// The one that is installed to.
    pub target: Root,
    /// Where the device stands.
    pub phase: Phase,
    /// How the bootloader is told, as it was before anything was changed.
    pub backend: Box<dyn Backend>,
    /// Whether an earlier update has to be undone first.
    pub recovery: bool,
}

/// Checks everything, cheap things first.
///
/// # Errors
/// Each is a refusal: nothing has been changed, but that what an earlier update has left to unpack in is gone.
pub fn check(request: &Request) -> Result<Ready> {
    let paths = &request.paths;
    let sysroot = Sysroot::at(paths.inactive());
    let device = if is_build(request) { None } else { Some(Device::check(request, &sysroot)?) };
    if let Source::File(file) = &request.source {
        readable(file, &sysroot)?;
    }
    let engine = Engine::connect(paths)?;
    let data_root = engine.data_root()?;
    if device.is_some() {
        is_in_the_slot(paths, &data_root, &sysroot)?;
    }
    if let Source::File(file) = &request.source {
        // More than the slot holds needs no reading to the end: a small file may unpack to terabytes.
        let most = if device.is_some() { MOST_UNPACKED.saturating_mul(holds(&sysroot)?) } else { u64::MAX };
        let archive = archive::inspect(file, most)?;
        engine.check_loadable(&archive)?;
        is_host_os(&archive, file)?;
        if device.is_some() {
            can_run_here(paths, &archive, file)?;
            has_base(paths, &archive, file)?;
            room_in_slot(&sysroot, archive.unpacked)?;
            room_to_unpack(paths, &sysroot, file, archive.size)?;
        }
    }
    if let Source::Reference(image) = &request.source {
        engine.check_pullable(image)?;
    }
    Ok(Ready { engine, data_root, sysroot, device })
}

/// Without it the slot would start nothing.
fn is_host_os(archive: &Archive, file: &Path) -> Result<()> {
    match archive.content {
        Content::Image { init: false, .. } => {
            let what =
                format!("cannot use the image in {} as a host OS: it has no /boot/init", file.display());
            Err(Error::new(Code::ImageNotHostOs, what).object(file.display()))
        }
        _ => Ok(()),
    }
}

/// Refuses only what no device like this one can run.
fn can_run_here(paths: &Paths, archive: &Archive, file: &Path) -> Result<()> {
    let Content::Image { machine: Some(machine), .. } = archive.content else { return Ok(()) };
    match Machine::of_this_program(paths) {
        Some(here) if !here.is_akin_to(machine) => {
            let what = format!(
                "cannot run the image in {} on this device: its programs are for {machine}, the device is {here}",
                file.display()
            );
            Err(Error::new(Code::ImageWrongArchitecture, what).object(file.display()))
        }
        _ => Ok(()),
    }
}

/// The image that a delta builds upon is looked for by the engine in its own store, which an update empties first, and in that of
/// the running slot (`--delta-data-root`), by its configuration (balenaEngine, image/fs.go). A store that is elsewhere or of
/// another form says nothing.
fn has_base(paths: &Paths, archive: &Archive, file: &Path) -> Result<()> {
    let Content::Delta { base, .. } = archive.content else { return Ok(()) };
    let missing = |base: &str| {
        let what = format!("cannot install the delta {}: {base}", file.display());
        Err(Error::new(Code::DeltaBaseMissing, what).object(file.display()))
    };
    let Some(base) = base else { return missing("it does not say which image it builds upon") };
    let stores = fs::read_dir(paths.active().join("balena/image")).into_iter().flatten().flatten();
    let stores = stores.map(|driver| driver.path().join("imagedb/content/sha256"));
    let stores: Vec<_> = stores.filter(|s| s.is_dir()).collect();
    if stores.is_empty() || stores.iter().any(|s| s.join(base.to_string()).exists()) {
        return Ok(());
    }
    missing(&format!("the running slot does not have the image sha256:{base}, which it builds upon"))
}

/// Whether a release is installed into the root file system of an image that is being made: there is no running slot then, and
/// no hooks are wanted. On a device the running slot is always mounted.
pub(super) fn is_build(request: &Request) -> bool {
    let mounts = mount::read_mounts(&request.paths.at("/proc/self/mountinfo")).unwrap_or_default();
    !request.hooks && !mounts.iter().any(|m| m.point == Path::new(crate::slot::ACTIVE))
}

impl Device {
    fn check(request: &Request, sysroot: &Sysroot) -> Result<Device> {
        let paths = &request.paths;
        // Looked into, an automount mounts what it stands for.
        let looked = fs::read_dir(sysroot.path().join("."));
        let roots = Roots::of(&Facts::gather(paths)?)?;
        let target = roots.other()?.clone();
        looked.map_err(|e| unusable(sysroot.path()).because(e))?;
        if is_read_only(sysroot.path())? {
            return Err(unusable(sysroot.path()).because("it is mounted read-only"));
        }
        if request.hooks {
            // First: a boot partition that is not mounted would look like one whose bootloader was never told anything.
            boot_is_usable(paths)?;
        }
        state_is_usable(paths)?;
        Device::of(paths, roots, target, request.force)
    }

    /// Where the device stands, and whether that allows an update.
    ///
    /// # Errors
    /// `UpdateRefused`; those of reading boot state and records.
    pub(crate) fn of(paths: &Paths, roots: Roots, target: Root, force: bool) -> Result<Device> {
        let seen = phase::observe(paths, &roots)?;
        allowed(seen.phase, force)?;
        let foreign = match files::BootfilesRecord::read(paths) {
            Ok(record) => record.is_some_and(|r| r.owner != roots.active.slot),
            // It says at least that a deployment was cut off.
            Err(_) => true,
        };
        let recovery = seen.phase.welcome() != Welcome::Free || foreign;
        Ok(Device { roots, target, phase: seen.phase, backend: seen.backend, recovery })
    }
}

/// Whether the phase allows an update.
fn allowed(phase: Phase, force: bool) -> Result<()> {
    let refused = || {
        Error::new(Code::UpdateRefused, format!("cannot update now: {}", phase.meaning()))
            .object(phase.as_str())
    };
    match phase.welcome() {
        Welcome::Free => Ok(()),
        Welcome::AfterRecovery => {
            tracing::warn!("{}; it is undone first", phase.meaning());
            Ok(())
        }
        Welcome::Forced if force => {
            tracing::warn!(
                "--force: updating although {}; the system that has proved itself is erased, and there is nothing to go \
                 back to but the running one",
                phase.meaning()
            );
            Ok(())
        }
        Welcome::Forced => Err(refused()),
        Welcome::Never => {
            Err(refused().with_hint("restart the device, and update when the rollback is done"))
        }
    }
}

/// The engine must keep its data in the slot: whatever it holds elsewhere would be erased.
fn is_in_the_slot(paths: &Paths, data_root: &Path, sysroot: &Sysroot) -> Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let (told, wanted) = (identity(&paths.at(data_root)), identity(&sysroot.engine()));
    // The folder may be there, with something else mounted over it.
    let slot = identity(sysroot.path()).map(|(dev, _)| dev);
    if told.is_some() && told == wanted && slot == told.map(|(dev, _)| dev) {
        return Ok(());
    }
    let message = format!(
        "cannot update with this container engine: it keeps its data in {}, not in {}",
        data_root.display(),
        sysroot.engine().display()
    );
    Err(Error::new(Code::EngineFailed, message)
        .object(data_root.display())
        .with_hint("restart balena-host.service, and look at its --data-root"))
}

fn readable(file: &Path, sysroot: &Sysroot) -> Result<()> {
    let error = |code| {
        Error::new(code, format!("cannot read the image archive {}", file.display())).object(file.display())
    };
    let real = file.canonicalize().map_err(|e| error(Code::ImageMissing).because(e))?;
    if !real.is_file() {
        return Err(error(Code::ImageNotRegular).because("it is not a plain file"));
    }
    fs::File::open(&real).map_err(|e| error(Code::ImageMissing).because(e))?;
    let slot = sysroot.path().canonicalize().unwrap_or_else(|_| sysroot.path().to_owned());
    if real.starts_with(slot) {
        return Err(error(Code::ImageNotRegular)
            .because("it is in the slot that is about to be erased")
            .with_hint("put it elsewhere, such as below /mnt/data"));
    }
    Ok(())
}

fn room_in_slot(sysroot: &Sysroot, needed: u64) -> Result<()> {
    enough("the other root partition", sysroot.path(), needed, holds(sysroot)?)
}

/// Bytes that the slot holds. Everything that is in it now goes, so that the whole of it counts.
fn holds(sysroot: &Sysroot) -> Result<u64> {
    let space = space(sysroot.path())?;
    // What the file system keeps for itself and for root's own use is not ours.
    let reserved = space.blocks_free().saturating_sub(space.blocks_available());
    #[allow(clippy::useless_conversion)] // their width depends on the platform
    Ok(u64::from(space.blocks().saturating_sub(reserved)).saturating_mul(space.fragment_size().into()))
}

/// An archive is unpacked as a whole before its layers are registered: on the data partition where there is one.
fn room_to_unpack(paths: &Paths, sysroot: &Sysroot, file: &Path, size: u64) -> Result<()> {
    let data = paths.data();
    if !data.is_dir() {
        return Ok(());
    }
    Scratch::clear(paths, sysroot, file);
    enough("the data partition", &data, size, available(&data)?)
        .map_err(|e| e.with_hint("make room on the data partition, or install from a registry"))
}

fn enough(what: &str, place: &Path, needed: u64, room: u64) -> Result<()> {
    if needed <= room {
        return Ok(());
    }
    let mib = |n: u64| n.div_ceil(1 << 20);
    let message =
        format!("cannot update: {what} has room for {} MiB, and {} MiB are needed", room >> 20, mib(needed));
    Err(Error::new(Code::SlotFull, message).object(place.display()))
}

/// Breadcrumbs and records must find room when they are needed: with a full state partition no rollback is safe.
fn state_is_usable(paths: &Paths) -> Result<()> {
    let state = paths.state();
    let error = || {
        Error::new(Code::StateUnwritable, format!("cannot update: {} cannot be used", state.display()))
            .object(state.display())
    };
    if !state.is_dir() {
        return Err(error().because("it is not there"));
    }
    if is_read_only(&state)? {
        return Err(error().because("it is mounted read-only"));
    }
    let room = available(&state)?;
    if room < STATE {
        return Err(error().because(format!(
            "{} KiB are free, and {} KiB are needed",
            room >> 10,
            STATE >> 10
        )));
    }
    Ok(())
}

fn boot_is_usable(paths: &Paths) -> Result<()> {
    // Looked into, an automount mounts what it stands for; why it does not is told below.
    drop(fs::read_dir(paths.boot().join(".")));
    let mounts = mount::read_mounts(&paths.at("/proc/self/mountinfo"))
        .map_err(|e| Error::new(Code::Io, "cannot read /proc/self/mountinfo").because(e))?;
    for boot in [paths.boot(), paths.plain_boot()] {
        let error = || {
            Error::new(
                Code::BootStateUnwritable,
                format!("cannot update: the boot partition at {} cannot be used", boot.display()),
            )
            .object(boot.display())
        };
        if !boot.is_dir() {
            return Err(error().because("it is not there"));
        }
        let point = Path::new("/").join(boot.strip_prefix(paths.root()).unwrap_or(&boot));
        if !mounts.iter().any(|m| m.point == point && m.fstype != "autofs") {
            return Err(error().because("nothing is mounted there"));
        }
        if is_read_only(&boot)? {
            return Err(error().because("it is mounted read-only"));
        }
    }
    Ok(())
}

fn is_read_only(path: &Path) -> Result<bool> {
    Ok(space(path)?.flags().contains(FsFlags::ST_RDONLY))
}

/// Bytes that are free for us.
fn available(path: &Path) -> Result<u64> {
    let space = space(path)?;
    #[allow(clippy::useless_conversion)] // their width depends on the platform
    Ok(u64::from(space.blocks_available()).saturating_mul(space.fragment_size().into()))
}

fn space(path: &Path) -> Result<Statvfs> {
    statvfs(path).map_err(|e| {
        Error::new(Code::Io, format!("cannot tell the room at {}", path.display()))
            .object(path.display())
            .because(e)
    })
}

fn unusable(slot: &Path) -> Error {
    Error::new(Code::UpdateRefused, format!("cannot update: the slot at {} cannot be used", slot.display()))
        .object(slot.display())
        .with_hint("look at the kernel log for the other root partition")
}
