//! What must hold before an update changes anything.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, Statvfs, statvfs};

use super::scratch::Scratch;
use super::sysroot::Sysroot;
use crate::boot_state::Backend;
use crate::config::paths::Paths;
use crate::config::update_conf::UpdateConf;
use crate::device_tree::{NewRelease, settle};
use crate::disk::Facts;
use crate::engine::Engine;
use crate::engine::archive::{self, Archive, Content, Machine};
use crate::error::{Code, Error, Result};
use crate::hooks;
use crate::image::Image;
use crate::job::{Source, UpdateSpec};
use crate::slot::{Root, Roots};
use crate::state::files;
use crate::state::phase::{self, Phase, UpdatePermission};
use crate::sys::file::Folder;
use crate::sys::mount;
use crate::unlock;

/// Bytes that an update's files need on the state partition.
const STATE: u64 = 256 << 10;

/// Files and directories that an update makes on the state partition.
const STATE_FILES: u64 = 32;

/// Limit of an archive's bytes, as a multiple of the slot's size: an archive may have each layer packed and unpacked, and has headers and
/// padding that take no space in the slot.
const MOST_UNPACKED: u64 = 4;

/// Where the release comes from.
pub enum Release {
    /// The archive that was checked, still open: its name may lead to another file by now.
    Archive(Image),
    Reference(String),
}

pub struct Ready {
    /// Its data is in the slot.
    pub engine: Engine,
    pub data_root: PathBuf,
    pub sysroot: Sysroot,
    /// `None` where an image is being built.
    pub device: Option<Device>,
    pub release: Release,
    /// Whether the slot's boot folder must stay readable until the new one replaces it.
    pub keeps_boot_folder: bool,
    /// What the owner named; `None` where an image is being built.
    pub trees: Option<NewRelease>,
}

pub struct Device {
    pub roots: Roots,
    pub target: Root,
    pub phase: Phase,
    pub backend: Box<dyn Backend>,
    pub recovery: bool,
}

/// Cheap checks first.
pub fn check(spec: &UpdateSpec, paths: &Paths) -> Result<Ready> {
    // The hooks of an undo need it, when it is too late to refuse it.
    hooks::limit(std::env::var_os(hooks::HOOK_LIMIT_VARIABLE))?;
    let sysroot = Sysroot::at(paths.inactive());
    let device = if is_build(spec, paths) { None } else { Some(Device::check(spec, paths, &sysroot)?) };
    if let Source::File(file) = &spec.source {
        readable(file, &sysroot)?;
    }
    let engine = Engine::connect(paths)?;
    let data_root = engine.data_root()?;
    if device.is_some() {
        is_in_the_slot(paths, &data_root, &sysroot)?;
    }
    let keeps_boot_folder = device.as_ref().is_some_and(|d| keeps_boot_folder(paths, &d.target));
    let kept = if keeps_boot_folder { sysroot.boot_folder_size()? } else { 0 };
    let trees = device.as_ref().map(|d| NewRelease::read(paths, d.is_secure()));
    let release = match &spec.source {
        Source::Reference(reference) => {
            engine.check_pullable(reference)?;
            Release::Reference(reference.clone())
        }
        Source::File(file) => {
            // A small file may unpack to terabytes: stop reading beyond what fits.
            let most =
                if device.is_some() { MOST_UNPACKED.saturating_mul(holds(&sysroot)?) } else { u64::MAX };
            let requested = trees.as_ref().map(NewRelease::requested_files).unwrap_or_default();
            let image = archive::open(file)?;
            let archive = archive::inspect(&image, most, &requested)?;
            engine.check_loadable(&archive)?;
            is_host_os(&archive, file)?;
            if device.is_some() {
                can_run_here(paths, &archive, file)?;
                has_base(paths, &archive, file)?;
                let needed = archive.unpacked.saturating_add(kept);
                room_in_slot(&sysroot, needed)?;
                inodes_in_slot(&sysroot, &archive)?;
                if let Some(trees) = &trees {
                    let free = holds(&sysroot)?.saturating_sub(needed);
                    let judgement = trees.judge(&|file| archive.leaves.contains(file), free);
                    judgement.warn();
                    settle(judgement.problems, spec.force)?;
                }
                room_to_unpack(paths, &sysroot, file, archive.size)?;
            }
            Release::Archive(image)
        }
    };
    Ok(Ready { engine, data_root, sysroot, device, release, keeps_boot_folder, trees })
}

/// A slot without it does not boot.
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

/// The engine looks for the base image of a delta in its own store, which an update empties first, and in that of the running slot
/// (`--delta-data-root`), by its configuration (balenaEngine, image/fs.go). A store in another place or format proves nothing.
fn has_base(paths: &Paths, archive: &Archive, file: &Path) -> Result<()> {
    let Content::Delta { base, .. } = archive.content else { return Ok(()) };
    let missing = |base: &str| {
        let what = format!("cannot install the delta {}: {base}", file.display());
        Err(Error::new(Code::DeltaBaseMissing, what).object(file.display()))
    };
    let Some(base) = base else { return missing("it does not name its base image") };
    let stores = fs::read_dir(paths.active().join("balena/image")).into_iter().flatten().flatten();
    let stores = stores.map(|driver| driver.path().join("imagedb/content/sha256"));
    let stores: Vec<_> = stores.filter(|s| s.is_dir()).collect();
    if stores.is_empty() || stores.iter().any(|s| s.join(base.to_string()).exists()) {
        return Ok(());
    }
    missing(&format!("the running slot does not have its base image, sha256:{base}"))
}

/// Whether the root file system of an image is being built: no slot runs, and no hooks run. On a device the running slot is always
/// mounted.
#[must_use]
pub(crate) fn is_build(spec: &UpdateSpec, paths: &Paths) -> bool {
    let mounts = mount::read_mounts(&paths.at("/proc/self/mountinfo")).unwrap_or_default();
    !spec.hooks && !mounts.iter().any(|m| m.point == Path::new(crate::slot::ACTIVE))
}

impl Device {
    fn check(spec: &UpdateSpec, paths: &Paths, sysroot: &Sysroot) -> Result<Device> {
        // Reading the folder triggers an automount.
        let looked = fs::read_dir(sysroot.path().join("."));
        let facts = Facts::gather(paths)?;
        let roots = Roots::of(&facts)?;
        let target = roots.inactive()?.clone();
        looked.map_err(|e| unusable(sysroot.path()).because(e))?;
        slot_is_writable(sysroot.path())?;
        if spec.hooks {
            // First: an unmounted boot partition looks like one without a selection.
            boot_is_usable(paths)?;
        }
        state_is_usable(paths)?;
        if spec.hooks {
            unlock::before_update(paths, &facts, &roots.active, spec.force)?;
        }
        Device::of(paths, roots, target, spec.force)
    }

    /// Whether only what is signed may boot: encrypted roots come with secure boot.
    fn is_secure(&self) -> bool {
        self.target.encrypted || self.roots.active.encrypted
    }

    pub fn of(paths: &Paths, roots: Roots, target: Root, force: bool) -> Result<Device> {
        let seen = phase::observe(paths, &roots)?;
        allowed(seen.phase, force)?;
        let foreign = match files::BootfilesRecord::read(paths) {
            Ok(record) => record.is_some_and(|r| r.owner != roots.active.slot),
            // A damaged record says at least that a deployment was cut off.
            Err(_) => true,
        };
        // Until the running system is selected, a power cut during the update would lead to the slot that is being erased.
        let unselected = seen.state.needs_repair(&roots.active);
        let recovery = seen.phase.update_permission() != UpdatePermission::Free || foreign || unselected;
        Ok(Device { roots, target, phase: seen.phase, backend: seen.backend, recovery })
    }
}

fn allowed(phase: Phase, force: bool) -> Result<()> {
    let refused = || {
        Error::new(Code::UpdateRefused, format!("cannot update now: {}", phase.meaning()))
            .object(phase.as_str())
    };
    match phase.update_permission() {
        UpdatePermission::Free => Ok(()),
        UpdatePermission::AfterRecovery => {
            tracing::warn!("{}; undoing it first", phase.meaning());
            Ok(())
        }
        UpdatePermission::Forced if force => {
            tracing::warn!(
                "--force: updating although {}; the committed system is erased, and there is nothing to go \
                 back to but the running one",
                phase.meaning()
            );
            Ok(())
        }
        UpdatePermission::Forced => Err(refused()),
        UpdatePermission::Never => {
            Err(refused().with_hint("restart the device, and update after the rollback"))
        }
    }
}

/// Data of the engine elsewhere would be erased.
fn is_in_the_slot(paths: &Paths, data_root: &Path, sysroot: &Sysroot) -> Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let (reported, expected) = (identity(&paths.at(data_root)), identity(&sysroot.engine()));
    // Another file system may be mounted over the folder.
    let slot = identity(sysroot.path()).map(|(dev, _)| dev);
    if reported.is_some() && reported == expected && slot == reported.map(|(dev, _)| dev) {
        return Ok(());
    }
    let message = format!(
        "cannot update with this container engine: it keeps its data in {}, not in {}",
        data_root.display(),
        sysroot.engine().display()
    );
    Err(Error::new(Code::EngineFailed, message)
        .object(data_root.display())
        .with_hint("restart balena-host.service, and check its --data-root"))
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
            .because("it is in the inactive slot, which the update erases")
            .with_hint("move it, for example below /mnt/data"));
    }
    Ok(())
}

/// A bootloader that reads its device tree from one slot at every boot (`boot.script` of the iot-link) needs it there also while that slot
/// is filled: after a power cut without it, no slot would boot. Kept for a mistake in the configuration, too: it costs only space.
fn keeps_boot_folder(paths: &Paths, target: &Root) -> bool {
    match UpdateConf::read(paths) {
        Ok(conf) => conf.always_read_slot == Some(target.slot.letter()),
        Err(e) => {
            tracing::warn!("{}; keeping the boot folder of slot {} meanwhile", e.message(), target.slot);
            true
        }
    }
}

fn room_in_slot(sysroot: &Sysroot, needed: u64) -> Result<()> {
    enough("the other root partition", sysroot.path(), needed, holds(sysroot)?)
}

/// What the engine makes in its store for each layer, and besides.
const INODES_OF_LAYER: u64 = 16;
const INODES_OF_ENGINE: u64 = 128;

fn inodes_in_slot(sysroot: &Sysroot, archive: &Archive) -> Result<()> {
    let layers = u64::try_from(archive.layers).unwrap_or(u64::MAX).saturating_mul(INODES_OF_LAYER);
    let needed = archive.entries.saturating_add(layers).saturating_add(INODES_OF_ENGINE);
    match Inodes::of(sysroot.path())? {
        Some(Inodes { total, .. }) if total < needed => {
            let message = format!(
                "cannot update: the other root partition has {total} inodes, and the files of the release need {needed}"
            );
            Err(Error::new(Code::SlotFull, message).object(sysroot.path().display()).with_hint(
                "use a release with fewer files: their number is fixed when the file system is made",
            ))
        }
        _ => Ok(()),
    }
}

/// Of a file system: how many files, directories and links it can have.
pub(crate) struct Inodes {
    pub(crate) total: u64,
    pub(crate) free: u64,
}

impl Inodes {
    /// `None` where the file system has no such limit.
    pub(crate) fn of(path: &Path) -> Result<Option<Inodes>> {
        let space = space(path)?;
        #[allow(clippy::useless_conversion)] // their width depends on the platform
        let (total, free) = (u64::from(space.files()), u64::from(space.files_available()));
        Ok((total > 0).then_some(Inodes { total, free }))
    }
}

/// All of the slot: the update erases its present content.
fn holds(sysroot: &Sysroot) -> Result<u64> {
    let space = space(sysroot.path())?;
    // Without the blocks that the file system reserves for itself and for root.
    let reserved = space.blocks_free().saturating_sub(space.blocks_available());
    #[allow(clippy::useless_conversion)] // their width depends on the platform
    Ok(u64::from(space.blocks().saturating_sub(reserved)).saturating_mul(space.fragment_size().into()))
}

/// The engine unpacks the whole archive before it registers layers: on the data partition where there is one.
fn room_to_unpack(paths: &Paths, sysroot: &Sysroot, file: &Path, size: u64) -> Result<()> {
    let data = paths.data();
    if !data.is_dir() {
        return Ok(());
    }
    Scratch::clear(paths, sysroot, file);
    enough("the data partition", &data, size, available(&data)?)
        .map_err(|e| e.with_hint("free space on the data partition, or update from a registry"))
}

fn enough(what: &str, place: &Path, needed: u64, free: u64) -> Result<()> {
    if needed <= free {
        return Ok(());
    }
    let mib = |n: u64| n.div_ceil(1 << 20);
    let message =
        format!("cannot update: {what} has space for {} MiB, and {} MiB are needed", free >> 20, mib(needed));
    Err(Error::new(Code::SlotFull, message).object(place.display()))
}

/// What the kernel does by itself to an ext4 in which it finds damage (`errors=remount-ro`). The initramfs of balenaOS checks each partition at each start.
const READ_ONLY: &str = "it is mounted read-only";
const CHECK: &str = "the kernel's log (`dmesg`) says why; restart the device, whose initramfs checks the file system, or unmount it and run `fsck.ext4 -f` on its device";

pub(crate) const CHECK_BOOT: &str = "the kernel's log (`dmesg`) says why; restart the device, whose initramfs checks the file system, or unmount it and run `fsck.vfat -a` on its device";

/// An update empties the slot, and fills it.
pub(crate) fn slot_is_writable(slot: &Path) -> Result<()> {
    if is_read_only(slot)? { Err(unusable(slot).because(READ_ONLY).with_hint(CHECK)) } else { Ok(()) }
}

/// Breadcrumbs and records need space: with a full state partition no rollback is safe.
pub(crate) fn state_is_usable(paths: &Paths) -> Result<()> {
    let state = paths.state();
    let error = || {
        Error::new(Code::StateUnwritable, format!("cannot update: {} cannot be used", state.display()))
            .object(state.display())
    };
    if !state.is_dir() {
        return Err(error().because("it does not exist"));
    }
    if is_read_only(&state)? {
        return Err(error().because(READ_ONLY).with_hint(CHECK));
    }
    let free = available(&state)?;
    if free < STATE {
        return Err(error()
            .because(format!("{} KiB are free, and {} KiB are needed", free >> 10, STATE >> 10))
            .with_hint("free space on the state partition"));
    }
    match Inodes::of(&state)? {
        Some(Inodes { free, .. }) if free < STATE_FILES => Err(error()
            .because(format!("{free} inodes are free, and {STATE_FILES} are needed"))
            .with_hint("remove files from the state partition: many small ones have used its inodes")),
        _ => Ok(()),
    }
}

fn boot_is_usable(paths: &Paths) -> Result<()> {
    // Reading the folder triggers an automount. The checks below report a failure.
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
            return Err(error().because("it does not exist"));
        }
        let point = Path::new("/").join(boot.strip_prefix(paths.root()).unwrap_or(&boot));
        if !mounts.iter().any(|m| m.point == point && m.fstype != "autofs") {
            return Err(error().because("nothing is mounted there"));
        }
        if is_read_only(&boot)? {
            return Err(error().because(READ_ONLY).with_hint(CHECK_BOOT));
        }
        // Without a node of its drive, no write to it can be flushed.
        Folder::open(&boot).map_err(|e| error().because(e))?;
    }
    Ok(())
}

fn is_read_only(path: &Path) -> Result<bool> {
    Ok(space(path)?.flags().contains(FsFlags::ST_RDONLY))
}

/// In bytes.
fn available(path: &Path) -> Result<u64> {
    let space = space(path)?;
    #[allow(clippy::useless_conversion)] // their width depends on the platform
    Ok(u64::from(space.blocks_available()).saturating_mul(space.fragment_size().into()))
}

fn space(path: &Path) -> Result<Statvfs> {
    statvfs(path).map_err(|e| {
        Error::new(Code::Io, format!("cannot read the free space of {}", path.display()))
            .object(path.display())
            .because(e)
    })
}

fn unusable(slot: &Path) -> Error {
    Error::new(Code::UpdateRefused, format!("cannot update: the slot at {} cannot be used", slot.display()))
        .object(slot.display())
        .with_hint("check the kernel log for errors of the other root partition")
}
