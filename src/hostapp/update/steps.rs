//! The steps of an update, in their order.

use std::path::PathBuf;

use super::fetch;
use super::new_root::{NewRoot, When};
use super::{Installed, Request, before};
use crate::bootloader;
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::flasher::progress::Progress;
use crate::hostapp::engine::{Hostapp, Image};
use crate::hostapp::hooks::builtin::bootfiles;
use crate::hostapp::preflight::{Device, Ready};
use crate::hostapp::sysroot::Sysroot;
use crate::hostapp::undo::{Undo, Undone};
use crate::phase::Marked;
use crate::phase::files::{self, BootfilesRecord, Marker};
use crate::sys::signal;

/// An update under way.
pub(super) struct Update<'a> {
    pub request: &'a Request,
    pub ready: &'a Ready,
    pub progress: &'a dyn Progress,
    transaction: String,
}

impl<'a> Update<'a> {
    pub(super) fn new(
        request: &'a Request,
        ready: &'a Ready,
        progress: &'a dyn Progress,
    ) -> Result<Update<'a>> {
        Ok(Update { request, ready, progress, transaction: files::new_transaction()? })
    }

    pub(super) fn run(&self) -> Result<Installed> {
        if let Some(device) = &self.ready.device {
            files::sweep(&self.request.paths);
            self.undo_earlier(device)?;
            before::keep(&self.request.paths)?;
        }
        let (image, hostapp) = self.install()?;
        let counter = match &self.ready.device {
            Some(device) if self.request.hooks => {
                let done = self.select(device, &image).and_then(|()| self.count());
                done.map_err(|e| self.undo(device, e))?
            }
            _ => self.count()?,
        };
        Ok(Installed {
            image: image.reference,
            image_id: image.id,
            hostapp: hostapp.id,
            slot: self.ready.device.as_ref().map(|d| d.target.slot),
            selected: self.request.hooks,
            counter,
        })
    }

    fn sysroot(&self) -> &Sysroot {
        &self.ready.sysroot
    }

    /// Sets back what an earlier update has selected or deployed, before the slot that it belongs to is erased.
    fn undo_earlier(&self, device: &Device) -> Result<()> {
        if !device.recovery {
            return Ok(());
        }
        // An update that was killed leaves its hooks running in their container. They would deploy and select behind our back what
        // is erased meanwhile.
        self.ready.engine.remove_running()?;
        let undone = self.way_back(device, true).run();
        undone.selection?;
        match undone.boot_files {
            Some(Err(e)) if self.request.force => {
                tracing::warn!("--force: going on although {e}");
            }
            Some(Err(e)) => {
                return Err(e.and_also(
                    "the boot partition may hold boot files of the other slot, which is therefore not erased",
                ));
            }
            _ => {}
        }
        undone.others.into_iter().next().map_or(Ok(()), Err)
    }

    /// Empties the slot, and fills it.
    fn install(&self) -> Result<(Image, Hostapp)> {
        let sysroot = self.sysroot();
        go_on()?;
        sysroot.make_skeleton()?;
        self.empty();
        sysroot.flush()?;
        go_on()?;
        let image = fetch::fetch(self)?;
        go_on()?;
        let hostapp = self.ready.engine.create_hostapp(&image)?;
        let volume = self.volume(&hostapp)?;
        sysroot.add(&hostapp.id, &volume)?;
        sysroot.make_current(&hostapp.id)?;
        go_on()?;
        Ok((image, hostapp))
    }

    /// What cannot be removed takes room, and harms nobody else: then the next step fails for want of it, or does not.
    fn empty(&self) {
        let engine = &self.ready.engine;
        for result in [engine.remove_containers(), engine.remove_images()] {
            if let Err(e) = result {
                tracing::warn!("{}", e.message());
            }
        }
        self.sysroot().remove_hostapps();
    }

    /// The boot volume below the engine's data; a complete one, since the slot boots from it.
    fn volume(&self, hostapp: &Hostapp) -> Result<PathBuf> {
        let error = |why: &str| {
            Error::new(Code::UpdateFailed, "cannot use the image as a host OS")
                .object(hostapp.boot.display())
                .because(why)
                .with_hint("name an image of the host OS")
        };
        let is_plain = |id: &str| !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
        if !is_plain(&hostapp.id) {
            return Err(error("the engine gave its container no usable name"));
        }
        let below = hostapp.boot.strip_prefix(&self.ready.data_root).ok();
        let below = below.filter(|p| p.components().all(|c| matches!(c, std::path::Component::Normal(_))));
        let volume = below.ok_or_else(|| error("its boot volume is not below the engine's data"))?;
        if !self.sysroot().engine().join(volume).join("init").is_file() {
            return Err(error("it has no /boot/init"));
        }
        Ok(volume.to_owned())
    }

    /// Runs the hooks of the new release, the last of which selects it.
    fn select(&self, device: &Device, image: &Image) -> Result<()> {
        let paths = &self.request.paths;
        let marker = Marker {
            kind: Marked::Installing,
            boot_id: files::boot_id(paths)?,
            target: device.target.slot,
            transaction: self.transaction.clone(),
        };
        marker.set(paths)?;
        files::drop_breadcrumbs(paths)?;
        self.hooks_here(When::Before)?;
        go_on()?;
        self.forward_hooks(image)?;
        go_on()?;
        self.hooks_here(When::After)?;
        go_on()?;
        self.is_selected(device)?;
        sum_up(paths);
        BootfilesRecord::settle(paths, device.target.slot)
    }

    /// The new hooks, in the running system.
    fn hooks_here(&self, when: When) -> Result<()> {
        let root = NewRoot::mount(self.sysroot())?;
        let result = root.run_hooks(when);
        root.unmount();
        result
    }

    /// The new hooks, in the new system.
    fn forward_hooks(&self, image: &Image) -> Result<()> {
        let mut last = String::new();
        let status = self.ready.engine.run_hooks(image, &mut |line| {
            tracing::info!("{line}");
            crate::sys::command::keep(&mut last, line);
        })?;
        match i32::try_from(status) {
            Ok(0) => Ok(()),
            status => {
                let end = crate::sys::command::End::Status(status.unwrap_or(i32::MAX));
                Err(Error::new(Code::HookFailed, "cannot run the forward hooks of the new release")
                    .object("forward")
                    .because(crate::sys::command::because(end, &last)))
            }
        }
    }

    /// What the hooks say is one thing, what the bootloader will read another.
    fn is_selected(&self, device: &Device) -> Result<()> {
        let target = &device.target;
        let dialect = bootloader::detect(&self.request.paths)?;
        let state = dialect.read()?;
        if !state.root.means(target) {
            return Err(Error::new(
                Code::HookFailed,
                format!(
                    "the hooks of the new release have succeeded, but slot {} is not selected",
                    target.slot
                ),
            )
            .object(dialect.file().display()));
        }
        if dialect.counts() && !state.upgrade_available {
            tracing::warn!(
                "slot {} is selected, but not on trial: the bootloader will not come back by itself",
                target.slot
            );
        }
        Ok(())
    }

    /// Marks the slot as the one that was installed later.
    fn count(&self) -> Result<u64> {
        let counter = Sysroot::at(self.request.paths.active()).counter().saturating_add(1);
        self.sysroot().set_counter(counter)?;
        Ok(counter)
    }

    fn way_back<'d>(&'d self, device: &'d Device, hooks: bool) -> Undo<'d> {
        Undo {
            paths: &self.request.paths,
            roots: &device.roots,
            dialect: &*device.dialect,
            transaction: self.transaction.clone(),
            hooks,
        }
    }

    /// Goes back, and tells in the error how far that led.
    fn undo(&self, device: &Device, why: Error) -> Error {
        tracing::error!("{}; going back to the running system", why.message());
        let undone = self.way_back(device, self.request.recover).run();
        let (running, target) = (device.roots.active.slot, device.target.slot);
        for e in &undone.others {
            tracing::warn!("{}", e.message());
        }
        match undone {
            Undone { selection: Err(e), .. } => {
                tracing::error!("{}", e.message());
                why.and_also(&format!(
                    "AND THE RUNNING SYSTEM COULD NOT BE SELECTED AGAIN ({}): slot {target}, which is not complete, may be \
                     what boots next",
                    e.message()
                ))
                .with_hint("do not restart the device: run the update again, which tries to select the running system first")
            }
            Undone { boot_files: Some(Err(e)), .. } => why.and_also(&format!(
                "slot {running}, the running system, boots next, but its boot files could not be restored ({})",
                e.message()
            )),
            _ => why.and_also(&format!("slot {running}, the running system, boots next")),
        }
    }
}

/// The new system boots without it.
fn sum_up(paths: &Paths) {
    if let Err(e) = bootfiles::sum_up_selection(paths) {
        tracing::warn!("{e}; `md5sum -c` will not accept the fingerprint of the boot files");
    }
}

/// Between two steps: whether somebody wants the update to end.
fn go_on() -> Result<()> {
    match signal::came() {
        None => Ok(()),
        Some(signal) => Err(Error::new(Code::Interrupted, format!("the update was ended by {signal}"))
            .with_hint("run the update again: the running system is selected as before")),
    }
}

pub(super) fn failed(what: &str) -> Error {
    Error::new(Code::UpdateFailed, format!("cannot update: cannot {what}"))
}
