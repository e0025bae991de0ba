//! Fills the slot, and runs the hooks of the new release.

use std::path::{Path, PathBuf};

use super::fetch;
use super::history_record::HistoryRecord;
use super::new_root::NewRoot;
pub use super::new_root::When;
use super::{before, go_on};
use crate::config::paths::Paths;
use crate::device_tree::settle;
use crate::engine::{Engine, Hostapp, Image};
use crate::error::{Code, Error, Result};
use crate::job::{Source, UpdateSpec};
use crate::progress::Progress;
use crate::slot::hostapp;
use crate::state::files::DeviceTreeRecord;
use crate::sys::command::{self, End};
use crate::unlock;
use crate::update::preflight::Ready;
use crate::update::sysroot::Sysroot;

/// Operations on the slot. Only the hooks select it.
pub trait Installer {
    /// Ends hooks of a killed update: they would deploy boot files of the slot that is being erased, and select it.
    fn end_hooks(&self) -> Result<()>;
    /// Whether hooks of this update may still run, because the engine went away.
    fn has_left_hooks(&self) -> bool;
    fn end_left_hooks(&self) -> Result<()>;
    /// Saves the state of the running system for the health checks of the new one.
    fn keep(&self, transaction: &str) -> Result<()>;
    fn install(&self) -> Result<(Image, Hostapp)>;
    fn hooks_here(&self, when: When) -> Result<()>;
    fn forward_hooks(&self, image: &Image) -> Result<()>;
    /// Marks the slot as the later installation. Returns its number.
    fn count(&self) -> Result<u64>;
}

pub(super) struct ByEngine<'a> {
    pub spec: &'a UpdateSpec,
    pub paths: &'a Paths,
    pub ready: &'a Ready,
    pub progress: &'a dyn Progress,
    pub history: &'a HistoryRecord,
}

impl Installer for ByEngine<'_> {
    fn end_hooks(&self) -> Result<()> {
        self.ready.engine.remove_running()
    }

    fn has_left_hooks(&self) -> bool {
        self.ready.engine.has_left_hooks()
    }

    fn end_left_hooks(&self) -> Result<()> {
        Engine::end_hooks(self.paths)
    }

    fn keep(&self, transaction: &str) -> Result<()> {
        before::keep(self.paths, transaction)
    }

    fn install(&self) -> Result<(Image, Hostapp)> {
        let sysroot = self.sysroot();
        go_on()?;
        sysroot.make_skeleton()?;
        if self.ready.keeps_boot_folder {
            sysroot.keep_boot_folder()?;
        }
        self.empty();
        sysroot.flush()?;
        go_on()?;
        let image = fetch::fetch(self.paths, self.ready, self.progress);
        // Unless the signal came too late.
        go_on()?;
        let image = image?;
        let hostapp = self.ready.engine.create_hostapp(&image)?;
        let volume = self.volume(&hostapp)?;
        sysroot.add(&hostapp.id, &volume)?;
        self.carry(&hostapp.id, &volume)?;
        sysroot.make_current(&hostapp.id)?;
        self.history.slot_is_filled(self.paths);
        go_on()?;
        Ok((image, hostapp))
    }

    fn hooks_here(&self, when: When) -> Result<()> {
        let root = NewRoot::mount(self.sysroot())?;
        let result = root.run_hooks(when, self.history);
        root.unmount();
        result
    }

    fn forward_hooks(&self, image: &Image) -> Result<()> {
        let mut last = String::new();
        // The hook reads no configuration of the running system.
        let accepted = unlock::accepts_loader_key(self.paths, self.spec.accept_loader_key);
        let more: &[&str] = if accepted { &[unlock::LOADER_KEY_ACCEPTED] } else { &[] };
        let status = self.ready.engine.run_hooks(image, more, &mut |line| {
            tracing::info!("{line}");
            command::keep(&mut last, line);
        })?;
        let end = End::Status(i32::try_from(status).unwrap_or(i32::MAX));
        self.history.hooks_ended("forward", end);
        if end.is_success() {
            return Ok(());
        }
        Err(Error::new(Code::HookFailed, "cannot run the forward hooks of the new release")
            .object("forward")
            .because(command::because(end, &last)))
    }

    fn count(&self) -> Result<u64> {
        let counter = Sysroot::at(self.paths.active()).counter().saturating_add(1);
        self.sysroot().set_counter(counter)?;
        Ok(counter)
    }
}

impl ByEngine<'_> {
    fn sysroot(&self) -> &Sysroot {
        &self.ready.sysroot
    }

    /// What cannot be removed takes space; the next step fails without enough. A layer that cannot be removed may be damaged; the trial of
    /// the new system detects that.
    fn empty(&self) {
        let engine = &self.ready.engine;
        let warn = |result: Result<()>| {
            if let Err(e) = result {
                tracing::warn!("{}", e.message());
            }
        };
        let emptied = [engine.remove_containers(), engine.remove_images()];
        // While a container or an image is left, its layers must stay: do not look for lost ones.
        let is_empty = emptied.iter().all(Result::is_ok);
        emptied.into_iter().for_each(warn);
        if is_empty {
            warn(engine.remove_lost_layers(&self.sysroot().engine()));
        }
        self.sysroot().remove_hostapps();
    }

    /// Carries what the owner named and the release lacks, before anything leads to the new boot folder.
    fn carry(&self, id: &str, volume: &Path) -> Result<()> {
        let Some(trees) = &self.ready.trees else { return Ok(()) };
        let (slot, force) = (self.sysroot(), self.spec.force);
        let to = slot.engine().join(volume);
        let has = |file: &Path| match file.strip_prefix("boot") {
            Ok(name) => to.join(name).is_file(),
            Err(_) => hostapp::has_file(slot.path(), id, file),
        };
        let judgement = trees.judge(&has, u64::MAX);
        // Of an archive, the checks have said it, and what a link of the release leads to is known only now.
        let is_archive = matches!(self.spec.source, Source::File(_));
        if !is_archive {
            judgement.warn();
        }
        let is_fine = judgement.problems.is_empty();
        if !is_archive || !force {
            settle(judgement.problems, force)?;
        }
        let outcome = trees.carry(&to);
        self.history.carried(outcome.carried);
        if force && !(is_fine && outcome.problems.is_empty()) {
            // The caller knows that the new system may get another tree: its trial must not fail for that.
            DeviceTreeRecord::remove(self.paths)?;
        }
        settle(outcome.problems, force)
    }

    /// Fails for an incomplete volume, which would not boot.
    fn volume(&self, hostapp: &Hostapp) -> Result<PathBuf> {
        let error = |code: Code, why: &str| {
            Error::new(code, "cannot use the image as a host OS").object(hostapp.boot.display()).because(why)
        };
        let is_plain = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_plain(&hostapp.id) {
            return Err(error(Code::EngineFailed, "the engine gave its container no usable name"));
        }
        let below = hostapp.boot.strip_prefix(&self.ready.data_root).ok();
        let below = below.filter(|p| p.components().all(|c| matches!(c, std::path::Component::Normal(_))));
        let volume = below
            .ok_or_else(|| error(Code::EngineFailed, "its boot volume is not below the engine's data"))?;
        if !self.sysroot().engine().join(volume).join("init").is_file() {
            return Err(error(Code::ImageNotHostOs, "it has no /boot/init"));
        }
        Ok(volume.to_owned())
    }
}
