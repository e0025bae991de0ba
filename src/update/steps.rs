use super::installer::{Installer, When};
use super::{Installed, go_on};
use crate::boot_files::deploy::sum_up_selection;
use crate::boot_state;
use crate::config::paths::Paths;
use crate::engine::Image;
use crate::error::{Code, Error, Result};
use crate::job::UpdateSpec;
use crate::state::files::{self, BootfilesRecord, Marker, Trial};
use crate::state::phase::Marked;
use crate::unlock;
use crate::update::preflight::Device;
use crate::update::undo::{self, EndHooks, Restore, Undo, Undone};

pub struct Update<'a> {
    pub spec: &'a UpdateSpec,
    pub paths: &'a Paths,
    /// `None` where an image is being built.
    pub device: Option<&'a Device>,
    pub installer: &'a dyn Installer,
    pub restore: Restore<'a>,
    pub transaction: String,
}

impl Update<'_> {
    pub fn run(&self) -> Result<Installed> {
        if let Some(device) = self.device {
            files::sweep(self.paths);
            self.undo_earlier(device)?;
            self.installer.keep(&self.transaction)?;
        }
        let (image, hostapp) = self.installer.install()?;
        let counter = match self.device {
            Some(device) if self.spec.hooks => {
                let done = self.select(device, &image).and_then(|()| {
                    let counter = self.installer.count()?;
                    unlock::after_hooks(self.paths, &device.roots.active)?;
                    Ok(counter)
                });
                done.map_err(|e| self.undo(device, e))?
            }
            _ => self.installer.count()?,
        };
        Ok(Installed {
            image: image.reference,
            image_id: image.id,
            hostapp: hostapp.id,
            slot: self.device.map(|d| d.target.slot),
            selected: self.spec.hooks,
            counter,
        })
    }

    /// Undoes what an earlier update has selected or deployed, before its slot is erased.
    fn undo_earlier(&self, device: &Device) -> Result<()> {
        if !device.recovery {
            return Ok(());
        }
        // The hooks of a killed update still run in their container. They would deploy boot files of the slot that is being erased, and
        // select it.
        self.installer.end_hooks()?;
        let undone = self.undo_plan(device, true, None).run();
        undone.selection?;
        match undone.boot_files {
            Some(Err(e)) if self.spec.force => {
                tracing::warn!("--force: continuing although {e}");
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

    /// The last hook of the new release selects it.
    fn select(&self, device: &Device, image: &Image) -> Result<()> {
        let paths = self.paths;
        unlock::check_release(paths, &device.roots.active, &paths.inactive(), self.spec.accept_loader_key)?;
        let marker = Marker {
            kind: Marked::Installing,
            boot_id: files::boot_id(paths)?,
            target: device.target.slot,
            transaction: self.transaction.clone(),
        };
        marker.set(paths)?;
        files::drop_breadcrumbs(paths)?;
        // Before any hook can select the slot: the record of an earlier trial has another count of resets.
        Trial { transaction: self.transaction.clone(), slot: device.target.slot, resets: 0 }.write(paths)?;
        unlock::before_hooks(paths, &device.roots.active, &paths.inactive())?;
        self.installer.hooks_here(When::Before)?;
        go_on()?;
        self.installer.forward_hooks(image)?;
        go_on()?;
        self.installer.hooks_here(When::After)?;
        go_on()?;
        self.is_selected(device)?;
        sum_up_selection(paths);
        BootfilesRecord::settle(paths, device.target.slot)
    }

    /// The hooks report success; the bootloader reads the selection.
    fn is_selected(&self, device: &Device) -> Result<()> {
        let target = &device.target;
        let backend = boot_state::detect(self.paths)?;
        let state = backend.read()?;
        let slot = target.slot;
        let file = backend.file().display();
        let why = match &state.damage {
            // Part of the selection may be hidden, and the bootloader may not be able to count.
            Some(damage) => format!("{file} is damaged ({damage})"),
            None if !state.selects(target) => format!("slot {slot} is not selected"),
            None => String::new(),
        };
        if !why.is_empty() {
            let text = format!("the hooks of the new release have succeeded, but {why}");
            return Err(Error::new(Code::HookFailed, text).object(file));
        }
        if backend.counts() && !state.upgrade_available {
            tracing::warn!(
                "slot {} is selected, but not on trial: the bootloader will not fall back",
                target.slot
            );
        }
        Ok(())
    }

    fn undo_plan<'d>(&'d self, device: &'d Device, hooks: bool, end_hooks: Option<EndHooks<'d>>) -> Undo<'d> {
        Undo {
            paths: self.paths,
            roots: &device.roots,
            backend: &*device.backend,
            transaction: self.transaction.clone(),
            hooks: hooks.then_some(self.restore),
            end_hooks,
        }
    }

    fn undo(&self, device: &Device, why: Error) -> Error {
        tracing::error!("{}; selecting the running system again", why.message());
        let end_hooks = || self.installer.end_left_hooks();
        let left = self.installer.has_left_hooks();
        let undone = self.undo_plan(device, self.spec.recover, left.then_some(&end_hooks)).run();
        let (running, target) = (device.roots.active.slot, device.target.slot);
        for e in &undone.others {
            tracing::warn!("{}", e.message());
        }
        let (why, next) = match &undone.left {
            Some(e) => {
                let text = format!(
                    "hooks of the new release may still run, and select slot {target} again ({})",
                    e.message()
                );
                (why.and_also(&text).with_hint(undo::HOW_TO_END), "boots next, unless they do")
            }
            None => (why, "boots next"),
        };
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
                "slot {running}, the running system, {next}, but its boot files could not be restored ({})",
                e.message()
            )),
            _ => why.and_also(&format!("slot {running}, the running system, {next}")),
        }
    }
}
