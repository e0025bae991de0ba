//! Undoes an update: when it fails, and when an earlier failed one is found.
//!
//! copal first selects the running system itself: from then on that system boots, whatever fails later. Each further part is tried
//! even when the one before it has failed.

use std::collections::BTreeSet;

use crate::boot_files::deploy::sum_up_selection;
use crate::boot_state::{self, Backend};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::hooks::builtin::bootfiles;
use crate::slot::{Root, Roots};
use crate::state::files::{self, BootfilesRecord, Marker, Trial};
use crate::sys::file;
use crate::unlock;

/// Runs the hooks of the running system with `DURING_UPDATE=0`; on a device [`hooks::current::restore`](crate::hooks::current::restore).
pub type Restore<'a> = &'a dyn Fn() -> Result<()>;

/// Ends hooks of the new release that may still run in their container: they would deploy boot files and select their slot.
pub type EndHooks<'a> = &'a dyn Fn() -> Result<()>;

/// What to do about those that could not be ended.
pub(crate) const HOW_TO_END: &str =
    "run `copal rollback now` when balena-host.service is up again, or restart the device: either ends them";

pub struct Undo<'a> {
    pub paths: &'a Paths,
    pub roots: &'a Roots,
    /// The backend before the update: a new release may have another one.
    pub backend: &'a dyn Backend,
    pub transaction: String,
    /// The running system's hooks, which restore its boot files; `None` to leave them out.
    pub hooks: Option<Restore<'a>>,
    /// `None` where no hooks of the new release can be running.
    pub end_hooks: Option<EndHooks<'a>>,
}

#[derive(Debug)]
#[must_use = "the caller must report what boots next"]
pub struct Undone {
    pub selection: Result<()>,
    /// Why hooks of the new release may still run, and select it again; the traces stay then.
    pub left: Option<Error>,
    /// Whether the boot files are in place; `None` where nothing restored them.
    pub boot_files: Option<Result<()>>,
    pub others: Vec<Error>,
}

impl Undo<'_> {
    /// Selection, boot files, traces; in this order.
    pub fn run(&self) -> Undone {
        let mut undone = self.restore();
        self.clear(&mut undone);
        undone
    }

    /// Selection and boot files. The traces stay: the caller has more to do before they go.
    pub fn restore(&self) -> Undone {
        self.record();
        let mut undone =
            Undone { selection: self.select(), left: None, boot_files: None, others: Vec::new() };
        if let Some(end_hooks) = self.end_hooks {
            // After the selection, since it may wait for the engine. Until they end, the hooks may select their system again.
            undone.left = end_hooks().err();
            self.record();
            undone.selection = self.select();
        }
        if undone.selection.is_err() {
            // Boot files belong to the selected system.
            return undone;
        }
        if let Some(hooks) = self.hooks {
            undone.boot_files = Some(self.restore_boot_files(hooks));
            flush_boot(self.paths);
            // The hooks end with a selection of their own. After them the present backend decides, and files of another backend that they
            // removed are not created again.
            undone.selection = match &undone.boot_files {
                Some(Ok(())) => boot_state::detect(self.paths)
                    .and_then(|now| select(self.paths, &*now, &self.roots.active)),
                _ => self.select(),
            };
        }
        if undone.left.is_none() {
            undone.others.extend(unlock::after_hooks(self.paths, &self.roots.active).err());
        }
        undone
    }

    /// Removes the traces, unless the selection failed or may be changed again: the next boot or update must then find them.
    pub fn clear(&self, undone: &mut Undone) {
        if undone.selection.is_err() {
            return;
        }
        sum_up_selection(self.paths);
        if undone.left.is_some() {
            // The running system's hooks have removed the breadcrumbs. With the marker they say that the update is not over, and after a
            // reboot, which ends every hook, that it must be undone.
            undone.others.extend(files::drop_breadcrumbs(self.paths).err());
            return;
        }
        let settled = match &undone.boot_files {
            Some(Ok(())) => BootfilesRecord::remove(self.paths),
            // The next boot tries again.
            Some(Err(_)) => Ok(()),
            None => BootfilesRecord::settle(self.paths, self.roots.active.slot),
        };
        // The breadcrumbs last: the next boot removes other traces only while it finds them.
        let traces = [
            settled,
            Trial::remove(self.paths),
            files::remove_breadcrumbs(self.paths),
            Marker::remove(self.paths),
        ];
        undone.others.extend(traces.into_iter().filter_map(Result::err));
    }

    /// While the inactive slot is selected, its boot files are in place, and the hook that selected it has removed their record. The next
    /// step selects the running slot, whose boot files are not in place.
    fn record(&self) {
        let running = &self.roots.active;
        let read = || -> Result<Option<BootfilesRecord>> {
            let state = boot_state::detect(self.paths)?.read()?;
            let selected = match self.roots.inactive() {
                Ok(inactive) => state.root.means(inactive),
                // The other root may be damaged, so that it cannot be mounted.
                Err(_) => !state.root.means(running),
            };
            let missing = selected && BootfilesRecord::read(self.paths)?.is_none();
            let (transaction, owner) = (self.transaction.clone(), self.roots.inactive_slot());
            Ok(missing.then_some(BootfilesRecord { transaction, owner }))
        };
        let written = read().and_then(|record| record.map_or(Ok(()), |r| r.write(self.paths)));
        if let Err(e) = written {
            tracing::warn!("{e}; a power cut before the boot files are restored would not be detected");
        }
    }

    fn select(&self) -> Result<()> {
        select(self.paths, self.backend, &self.roots.active)
    }

    fn restore_boot_files(&self, hooks: Restore<'_>) -> Result<()> {
        let Err(e) = hooks() else { return Ok(()) };
        tracing::error!("{e}; restoring the boot files without them");
        let context =
            Context { paths: self.paths.clone(), during_update: false, called: "1-bootfiles".to_owned() };
        bootfiles::run(&context)
    }
}

/// Flushes the boot partitions: hooks of a shell release may leave that to their caller, and the selection must not reach the medium
/// before their files.
pub(crate) fn flush_boot(paths: &Paths) {
    for place in BTreeSet::from([paths.boot(), paths.plain_boot()]) {
        if let Err(e) = file::sync_file_system(&place) {
            tracing::warn!("cannot flush {}: {e}", place.display());
        }
    }
}

/// Selects a complete root for good, with the present backend and with `before`, the backend before the hooks ran: they may have changed
/// it.
pub fn select(paths: &Paths, before: &dyn Backend, root: &Root) -> Result<()> {
    // Detected before the first write: a new file of `before` could be detected instead. And `before` is written first, since its
    // bootloader is the one on the device.
    let now = boot_state::detect(paths);
    let moved = now.as_ref().ok().filter(|now| now.file() != before.file());
    let first = moved.map_or(Ok(()), |now| now.set(root, false));
    let second = before.set(root, false);
    let decisive = match now.as_ref() {
        Ok(now) => now.as_ref(),
        Err(_) => before,
    };
    let state = decisive.read()?;
    if state.selects(root) && state.damage.is_none() && !state.upgrade_available && state.bootcount == 0 {
        for e in [first, second].into_iter().filter_map(Result::err) {
            tracing::warn!("{e}; slot {} is selected nevertheless", root.slot);
        }
        return Ok(());
    }
    first.and(second)?;
    Err(Error::new(Code::BootStateUnwritable, format!("cannot select slot {}", root.slot))
        .object(decisive.file().display())
        .because("it was written, but reading returns another selection"))
}
