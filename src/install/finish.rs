use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::SystemTime;

use super::partitions::{self, Partitions};
use super::plan::Installation;
use super::receipt::{BootPartitionRecord, Receipt};
use super::timeline::Timeline;
use super::{Ready, device_trees, undo};
use crate::boot_files::install::{self, BootPartition, Destination};
use crate::bootloader::{self, Written};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::flash::plan::Plan;
use crate::flash::watch::Watch;
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
    pub(super) fn write_image(&self) -> Result<Receipt> {
        let _held = hold_off_shutdown();
        Ok(self.ready.prepared.run(self.paths, self.watch.progress())?.into())
    }

    /// All steps after the write. On a failure or a signal, the disk is made unbootable again.
    pub(super) fn finish(&self, receipt: Receipt, plugin: &mut Plugin, time: Timeline) -> Result<Receipt> {
        let mut mounted = None;
        let done = self.steps(receipt, plugin, &mut mounted, time);
        done.map_err(|e| undo::make_unbootable(self.plan(), mounted, e))
    }

    fn steps(
        &self,
        mut receipt: Receipt,
        plugin: &mut Plugin,
        mounted: &mut Option<BootPartition>,
        mut time: Timeline,
    ) -> Result<Receipt> {
        let plan = self.plan();
        let table = plan.image.table.as_ref();
        let mut step = Steps { time: &mut time };
        refuse_after_signal("write")?;
        let look = || partitions::find(self.paths, &plan.target, table);
        step.run("partitions", || look()?.boot().map(drop))?;
        receipt.bootloaders = step.run("bootloaders", || self.write_bootloaders())?;
        step.run("boot partition", || {
            // Again: after a disk was open for writing, udev makes the kernel read its table again, and all of its partitions vanish
            // and return (systemd's udevd watches whole disks). A bootloader on this disk was such a write.
            let disk = look()?;
            let boot = mounted.insert(BootPartition::mount(&disk.boot()?, &self.paths.at(install::POINT))?);
            self.populate(boot, &disk, plugin, &mut receipt)
        })?;
        step.run("board program", || {
            if self.ready.board.has_flasher_program() {
                self.watch.hands_off();
            }
            self.ready.board.flasher_board()
        })?;
        let receipt = receipt.finished(step.time.so_far());
        step.run("records", || self.leave_records(&receipt, mounted))?;
        step.run("boot entry", || plugin.bootloader_postsetup())?;
        Ok(receipt)
    }

    fn write_bootloaders(&self) -> Result<Vec<Written>> {
        let _held = hold_off_shutdown();
        let planned = self.ready.installation.bootloaders.iter();
        // Prepared again: the disk may now have other partitions.
        planned.map(|b| bootloader::prepare(&b.write(), self.paths, None)?.run_before_power_off()).collect()
    }

    fn populate(
        &self,
        boot: &BootPartition,
        disk: &Partitions,
        plugin: &mut Plugin,
        receipt: &mut Receipt,
    ) -> Result<()> {
        let dest = Destination::open(boot.point(), None).map_err(Error::after_write)?;
        let Installation { boot_partition: contents, device_trees: trees, .. } = &self.ready.installation;
        // A log that does not fit is not copied: see `leave_records`.
        contents.check(&dest, log_file().map_or(0, |log| log.1)).or_else(|_| contents.check(&dest, 0))?;
        let held = hold_off_shutdown();
        // Before the boot partition names them.
        let carried = device_trees::carry(trees, self.paths, &dest, || disk.root())?;
        let deployed = contents.deploy(&dest)?;
        receipt.device_trees = device_trees::report(trees, boot.point(), carried)?;
        receipt.boot_partition = Some(BootPartitionRecord { device: boot.node().to_owned(), deployed });
        drop(held);
        // The plug-in may start a reboot, so nothing is held open.
        plugin.bootloader_setup()?;
        let _held = hold_off_shutdown();
        contents.deploy_config_json(&dest)
    }

    /// Receipt and log: the last writes to the disk.
    fn leave_records(&self, receipt: &Receipt, mounted: &mut Option<BootPartition>) -> Result<()> {
        let _held = hold_off_shutdown();
        let Some(boot) = mounted.as_ref() else { return Ok(()) };
        let dest = Destination::open(boot.point(), None).map_err(Error::after_write)?;
        install::put(&dest, OsStr::new(RECEIPT), receipt.to_text().as_bytes())?;
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

fn refuse_after_signal(step: &str) -> Result<()> {
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
