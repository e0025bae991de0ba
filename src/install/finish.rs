use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::device_trees::Tree;
use super::encryption::Encrypted;
use super::partitions;
use super::plan::{self, Installation, PlannedBootloader};
use super::receipt::{BootPartitionRecord, Receipt};
use super::timeline::Timeline;
use super::{Ready, boot_entry, device_trees, secure_boot, undo};
use crate::boot_files::install::{self, BootPartition, Contents, Destination};
use crate::bootloader::{self, Written};
use crate::config::paths::Paths;
use crate::disk::partition::Table;
use crate::error::{Code, Effect, Error, Result};
use crate::flash::plan::Plan;
use crate::flash::watch::Watch;
use crate::image::BOOT_LABEL;
use crate::install::plugin::Plugin;
use crate::sys::signal;
use crate::sys::systemd::{self, Inhibitor};

const RECEIPT: &str = "flash-receipt.json";

/// The variable with the log file of an initramfs, which is lost with it.
const LOG_VARIABLE: &str = "INITRAMFS_LOGFILE";

pub(super) struct FinalSteps<'a> {
    pub(super) paths: &'a Paths,
    pub(super) ready: &'a Ready,
    pub(super) watch: &'a Watch<'a>,
}

impl FinalSteps<'_> {
    fn plan(&self) -> &Plan {
        &self.ready.prepared.plan
    }

    /// Writes the image and reads it back.
    pub(super) fn write_image(
        &self,
        encrypted: Option<&mut Encrypted>,
        plugin: &mut Plugin,
    ) -> Result<Receipt> {
        let _held = hold_off_shutdown();
        let Some(encrypted) = encrypted else {
            return Ok(self.ready.prepared.run(self.paths, self.watch.progress())?.into());
        };
        if let Err(e) = encrypted.clear(self.ready, self.paths) {
            if e.effect() != Effect::Refused {
                return Err(self.undo(None, Some(encrypted), e));
            }
            // The disk may be another one by now, or in use: it is as it was.
            encrypted.let_go(self.paths);
            return Err(e);
        }
        let written = encrypted.write(self.ready, plugin, self.paths, self.watch.progress());
        written.map(Into::into).map_err(|e| self.undo(None, Some(encrypted), e))
    }

    fn undo(&self, mounted: Option<BootPartition>, encrypted: Option<&mut Encrypted>, e: Error) -> Error {
        undo::make_unbootable(self.plan(), self.paths, mounted, encrypted, e)
    }

    /// All steps after the write. On a failure or a signal, the disk is made unbootable again.
    pub(super) fn finish(
        &self,
        receipt: Receipt,
        plugin: &mut Plugin,
        mut encrypted: Option<&mut Encrypted>,
        time: Timeline,
    ) -> Result<Receipt> {
        let mut mounted = None;
        let done = self.steps(receipt, plugin, encrypted.as_deref_mut(), &mut mounted, time);
        done.map_err(|e| self.undo(mounted, encrypted, e))
    }

    fn steps(
        &self,
        mut receipt: Receipt,
        plugin: &mut Plugin,
        mut encrypted: Option<&mut Encrypted>,
        mounted: &mut Option<BootPartition>,
        mut time: Timeline,
    ) -> Result<Receipt> {
        let plan = self.plan();
        let table = plan.image.table.as_ref();
        let mut step = Steps { time: &mut time };
        refuse_after_signal("write")?;
        let look = || partitions::find(self.paths, &plan.target, table);
        if encrypted.is_none() {
            step.run("partitions", || look()?.boot().map(drop))?;
        }
        let coming = encrypted.as_deref().map(Encrypted::table);
        receipt.bootloaders = step.run("bootloaders", || self.write_bootloaders(coming.as_ref()))?;
        let mut has_loader = false;
        let mut look_for_loader =
            |boot: &BootPartition| has_loader = boot.point().join(boot_entry::LOADER).is_file();
        step.run("boot partition", || {
            let point = self.paths.at(install::POINT);
            let Some(encrypted) = encrypted.as_deref_mut() else {
                // Again: after a disk was open for writing, udev makes the kernel read its table again, and all of its partitions
                // vanish and return (systemd's udevd watches whole disks). A bootloader on this disk was such a write.
                let disk = look()?;
                let boot = mounted.insert(BootPartition::mount(&disk.boot()?, &point)?);
                let Installation { boot_partition, device_trees, .. } = &self.ready.installation;
                let dest = Destination::open(boot.point(), None).map_err(Error::after_write)?;
                self.populate(
                    boot,
                    &dest,
                    boot_partition,
                    device_trees,
                    &|| disk.root(),
                    plugin,
                    &mut receipt,
                )?;
                look_for_loader(boot);
                let config = self.ready.conf.bootloader_config_path.as_deref().and_then(Path::parent);
                return match config.filter(|_| self.ready.is_built_in) {
                    Some(folder) => secure_boot::remove_secure_programs(&boot.point().join(folder)),
                    None => Ok(()),
                };
            };
            let boot = mounted.insert(BootPartition::mount(&Encrypted::boot(self.paths), &point)?);
            let contents = encrypted.split(self.ready, plugin, boot, self.paths)?;
            let dest =
                Destination::open(boot.point(), encrypted.non_encrypted()).map_err(Error::after_write)?;
            if !self.ready.installation.device_trees.is_empty() {
                tracing::warn!(
                    "extra_uEnv.txt and the device trees that it names are not copied: they are not signed"
                );
            }
            let no_root = || Err(Error::new(Code::Io, "no device tree belongs onto the root"));
            self.populate(boot, &dest, &contents, &[], &no_root, plugin, &mut receipt)?;
            drop(dest);
            // Of the partition that the firmware reads, which a link leads to.
            look_for_loader(boot);
            receipt.encryption = Some(encrypted.record());
            encrypted.unmount_split()
        })?;
        step.run("board program", || {
            if self.ready.board.has_flasher_program() {
                self.watch.hands_off();
            }
            self.ready.board.flasher_board()
        })?;
        let receipt = receipt.finished(step.time.so_far());
        step.run("records", || self.leave_records(&receipt, mounted))?;
        let Some(encrypted) = encrypted else {
            step.run("boot entry", || self.prepare_start(has_loader, plugin, None))?;
            return Ok(receipt);
        };
        let _held = hold_off_shutdown();
        step.time.step("partition table", || encrypted.make_bootable(self.ready, self.paths))?;
        // A device that starts signed programs only may not start the medium again: nothing undoes the installation from here on, no signal
        // and no failure.
        let started =
            step.time.step("boot entry", || self.prepare_start(has_loader, plugin, coming.as_ref()));
        if let Err(e) = started {
            tracing::warn!("{}; the installation is complete", e.message());
        }
        Ok(receipt)
    }

    /// What makes firmware or processor start the installed system. `encrypted`: the table of an encrypted disk.
    fn prepare_start(&self, has_loader: bool, plugin: &mut Plugin, encrypted: Option<&Table>) -> Result<()> {
        if self.ready.secure_boot.is_some() {
            self.set_boot_entry(encrypted);
            return Ok(());
        }
        if has_loader && !plugin.has_postsetup().map_err(Error::after_write)? {
            self.set_boot_entry(encrypted);
        }
        plugin.bootloader_postsetup()
    }

    /// `encrypted`: the table of an encrypted disk.
    fn set_boot_entry(&self, encrypted: Option<&Table>) {
        let plan = self.plan();
        let boot = match encrypted {
            Some(table) => table.partitions.first(),
            None => {
                let table = plan.image.table.as_ref();
                table.and_then(|table| {
                    table.partitions.iter().find(|p| p.label.as_deref() == Some(BOOT_LABEL))
                })
            }
        };
        if let Some(boot) = boot {
            boot_entry::set(self.paths, &plan.target, boot.start);
        }
    }

    /// `coming`: the disk's table, where it is not on the disk yet.
    fn write_bootloaders(&self, coming: Option<&Table>) -> Result<Vec<Written>> {
        let _held = hold_off_shutdown();
        let planned = self.ready.installation.bootloaders.iter();
        let coming = coming.and_then(|table| plan::coming(self.plan(), Some(table)));
        // Prepared again: the disk may now have other partitions.
        let prepare = |b: &PlannedBootloader| bootloader::prepare(&b.write(), self.paths, coming.as_ref());
        planned.map(|b| prepare(b)?.run_before_power_off()).collect()
    }

    /// `root` finds the root of the new system, for device trees.
    #[allow(clippy::too_many_arguments)] // each of them differs in an encrypted installation
    fn populate(
        &self,
        boot: &BootPartition,
        dest: &Destination,
        contents: &Contents,
        trees: &[Tree],
        root: &dyn Fn() -> Result<PathBuf>,
        plugin: &mut Plugin,
        receipt: &mut Receipt,
    ) -> Result<()> {
        // A log that does not fit is not copied: see `leave_records`.
        contents.check(dest, log_file().map_or(0, |log| log.1)).or_else(|_| contents.check(dest, 0))?;
        let held = hold_off_shutdown();
        // Before the boot partition names them.
        let carried = device_trees::carry(trees, self.paths, dest, root)?;
        let deployed = contents.deploy(dest)?;
        receipt.device_trees = device_trees::report(trees, boot.point(), carried)?;
        receipt.boot_partition = Some(BootPartitionRecord { device: boot.node().to_owned(), deployed });
        drop(held);
        // The plug-in may start a reboot, so nothing is held open.
        plugin.bootloader_setup()?;
        let _held = hold_off_shutdown();
        contents.deploy_config_json(dest)
    }

    /// Receipt and log: the last writes to the disk.
    fn leave_records(&self, receipt: &Receipt, mounted: &mut Option<BootPartition>) -> Result<()> {
        let _held = hold_off_shutdown();
        let Some(boot) = mounted.as_ref() else { return Ok(()) };
        let dest = Destination::open(boot.point(), None).map_err(Error::after_write)?;
        install::put(&dest, OsStr::new(RECEIPT), receipt.to_text()?.as_bytes())?;
        if let Some((log, _)) = log_file() {
            let name = format!("migration_{}", minute());
            let kept = match std::fs::read(&log) {
                Ok(bytes) => install::put(&dest, OsStr::new(&name), &bytes).map_err(|e| e.message()),
                Err(e) => Err(e.to_string()),
            };
            // The log only helps to find a fault, so a failure does not undo a good installation: in an initramfs there may be no
            // medium any more to start another one from.
            if let Err(why) = kept {
                tracing::warn!("cannot keep {}, which {LOG_VARIABLE} names: {why}", log.display());
            }
        }
        drop(dest);
        mounted.take().map_or(Ok(()), BootPartition::unmount)
    }
}

/// Steps with a check for signals between them.
pub(super) struct Steps<'a> {
    pub(super) time: &'a mut Timeline,
}

impl Steps<'_> {
    pub(super) fn run<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = self.time.step(name, work)?;
        refuse_after_signal(name)?;
        Ok(done)
    }
}

pub(super) fn refuse_after_signal(step: &str) -> Result<()> {
    let Some(signal) = signal::came() else { return Ok(()) };
    let message = format!("the installation was interrupted after its step `{step}` by {signal}");
    Err(Error::new(Code::Interrupted, message).object(step))
}

/// Inhibits an accidental shutdown. Without systemd-logind there is no inhibitor, which is not a failure.
fn hold_off_shutdown() -> Option<Inhibitor> {
    systemd::inhibit_shutdown("copal", "the internal disk is being written")
}

fn log_file() -> Option<(PathBuf, u64)> {
    let path = PathBuf::from(std::env::var_os(LOG_VARIABLE).filter(|v| !v.is_empty())?);
    let meta = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
    Some((path, meta.len()))
}

/// UTC, as `YYYYmmddTHHMM`.
fn minute() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.chars().filter(|c| !matches!(c, '-' | ':')).take(13).collect()
}
