//! Back to the running system: when an update fails, and when one that failed earlier left its traces.
//!
//! The selection goes first, by copal's own hand: from then on the running system is the one that boots, whatever becomes of
//! the rest. Each further part is tried even when the one before it has failed.

use std::collections::BTreeSet;

use crate::boot_state::{self, Backend};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::hooks::Context;
use crate::hooks::builtin::{self, bootfiles};
use crate::slot::{Root, Roots};
use crate::state::files::{self, BootfilesRecord, Marker, Trial};
use crate::sys::file;

/// Runs the hooks of the running system with `DURING_UPDATE=0`; [`hooks::current::restore`](crate::hooks::current::restore)
/// on a device.
pub type Restore<'a> = &'a dyn Fn() -> Result<()>;

/// Ends hooks of the new release that may still run in their container: they would deploy and select behind our back.
pub type EndHooks<'a> = &'a dyn Fn() -> Result<()>;

/// What to do about those that could not be ended.
pub const HOW_TO_END: &str =
    "run `copal rollback now` when balena-host.service is up again, or restart the device: either ends them";

/// The way back.
pub struct Undo<'a> {
    /// Where everything is.
    pub paths: &'a Paths,
    /// The root partitions.
    pub roots: &'a Roots,
    /// How the bootloader was told before the update: a new release may have moved to another way.
    pub backend: &'a dyn Backend,
    /// The update that this belongs to.
    pub transaction: String,
    /// The running system's hooks, which put its boot files back; `None` where nobody wants that.
    pub hooks: Option<Restore<'a>>,
    /// `None` where none of the new release's can be left.
    pub end_hooks: Option<EndHooks<'a>>,
}

/// How far the way back led.
#[derive(Debug)]
#[must_use = "somebody has to be told what boots next"]
pub struct Undone {
    /// Whether the running system is the one that boots.
    pub selection: Result<()>,
    /// Why hooks of the new release may still run, and select it again; the traces stay then.
    pub left: Option<Error>,
    /// Whether its boot files are in place; `None` where nobody looked after them.
    pub boot_files: Option<Result<()>>,
    /// What else could not be done.
    pub others: Vec<Error>,
}

impl Undo<'_> {
    /// Selection, boot files, traces; in this order.
    pub fn run(&self) -> Undone {
        let mut undone = self.restore();
        self.clear(&mut undone);
        undone
    }

    /// Selection and boot files. The traces stay: whoever calls this has more to do before they go.
    pub fn restore(&self) -> Undone {
        self.record();
        let mut undone =
            Undone { selection: self.select(), left: None, boot_files: None, others: Vec::new() };
        if let Some(end_hooks) = self.end_hooks {
            // Behind the selection: it may have to wait for the engine. They may have selected their system up to their end.
            undone.left = end_hooks().err();
            self.record();
            undone.selection = self.select();
        }
        if undone.selection.is_err() {
            // The boot files belong to what is selected.
            return undone;
        }
        if let Some(hooks) = self.hooks {
            undone.boot_files = Some(self.restore_boot_files(hooks));
            flush_boot(self.paths);
            // They end with one that selects, too. Where they have run, the bootloader is told as they tell it, and what they have
            // removed is not made again.
            undone.selection = match &undone.boot_files {
                Some(Ok(())) => boot_state::detect(self.paths)
                    .and_then(|now| select(self.paths, &*now, &self.roots.active)),
                _ => self.select(),
            };
        }
        undone
    }

    /// The traces, unless the selection failed, or may not last: then they must stay for whoever comes next to find.
    pub fn clear(&self, undone: &mut Undone) {
        if undone.selection.is_err() {
            return;
        }
        bootfiles::sum_up_selection(self.paths);
        if undone.left.is_some() {
            // The running system's hooks have removed them. With the marker they say that this is not over, and with the next boot, which
            // ends everybody, that it is to be looked after.
            undone.others.extend(files::drop_breadcrumbs(self.paths).err());
            return;
        }
        let settled = match &undone.boot_files {
            Some(Ok(())) => BootfilesRecord::remove(self.paths),
            // The next boot tries again.
            Some(Err(_)) => Ok(()),
            None => BootfilesRecord::settle(self.paths, self.roots.active.slot),
        };
        // The breadcrumbs behind whatever the next boot looks after only while it finds them.
        let traces = [
            settled,
            Trial::remove(self.paths),
            files::remove_breadcrumbs(self.paths),
            Marker::remove(self.paths),
        ];
        undone.others.extend(traces.into_iter().filter_map(Result::err));
    }

    /// While the other slot is selected, its boot files are the ones in place, and the hook that selected it has removed the record
    /// of that. From the next step on they are not those of what boots.
    fn record(&self) {
        let running = &self.roots.active;
        let read = || -> Result<Option<BootfilesRecord>> {
            let state = boot_state::detect(self.paths)?.read()?;
            let selected = match &self.roots.inactive {
                Some(other) => state.root.means(other),
                // A root that does not boot may not be one that can be mounted.
                None => !state.root.means(running),
            };
            let missing = selected && BootfilesRecord::read(self.paths)?.is_none();
            let (transaction, owner) = (self.transaction.clone(), running.slot.other());
            Ok(missing.then_some(BootfilesRecord { transaction, owner }))
        };
        let written = read().and_then(|record| record.map_or(Ok(()), |r| r.write(self.paths)));
        if let Err(e) = written {
            tracing::warn!("{e}; a power cut before the boot files are back would not be noticed");
        }
    }

    fn select(&self) -> Result<()> {
        select(self.paths, self.backend, &self.roots.active)
    }

    fn restore_boot_files(&self, hooks: Restore<'_>) -> Result<()> {
        let Err(e) = hooks() else { return Ok(()) };
        tracing::error!("{e}; the boot files are restored without them");
        let context =
            Context { paths: self.paths.clone(), during_update: false, called: "1-bootfiles".to_owned() };
        let own = builtin::BUILTINS.iter().find(|b| b.names.contains(&"1-bootfiles"));
        match own {
            Some(hook) => (hook.run)(&context),
            None => Err(e),
        }
    }
}

/// Everything that hooks have written to the boot partitions: those of a shell release may leave that to whoever runs them, and
/// the selection must not reach the medium before it.
pub fn flush_boot(paths: &Paths) {
    for place in BTreeSet::from([paths.boot(), paths.plain_boot()]) {
        if let Err(e) = file::sync_file_system(&place) {
            tracing::warn!("cannot flush {}: {e}", place.display());
        }
    }
}

/// Selects a complete root for good, in every way that a bootloader may be told by now: `before` is the one that was in use before hooks
/// ran, which may have moved to another.
///
/// # Errors
/// `BootStateUnwritable`, `BootStateInvalid`: something else may boot next.
pub fn select(paths: &Paths, before: &dyn Backend, root: &Root) -> Result<()> {
    // Asked for before anything is written: the file of `before`, made anew, could be taken for the one that is read now. And written
    // first, since its bootloader is the one that is there.
    let now = boot_state::detect(paths);
    let moved = now.as_ref().ok().filter(|now| now.file() != before.file());
    let first = moved.map_or(Ok(()), |now| now.set(root, false));
    let second = before.set(root, false);
    let decisive = match now.as_ref() {
        Ok(now) => now.as_ref(),
        Err(_) => before,
    };
    let state = decisive.read()?;
    if state.root.means(root) && !state.upgrade_available && state.bootcount == 0 {
        for e in [first, second].into_iter().filter_map(Result::err) {
            tracing::warn!("{e}; slot {} is selected all the same", root.slot);
        }
        return Ok(());
    }
    first.and(second)?;
    Err(Error::new(Code::BootStateUnwritable, format!("cannot select slot {}", root.slot))
        .object(decisive.file().display())
        .because("it was written, and does not read so"))
}
