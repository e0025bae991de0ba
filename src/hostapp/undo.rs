//! Back to the running system: when an update fails, and when one that failed earlier left its traces.
//!
//! The selection goes first, by copal's own hand: from then on the running system is the one that boots, whatever becomes of
//! the rest. Each further part is tried even when the one before it has failed.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::hooks::{self, Context, DIR, Phases, Run, Signals, builtin};
use crate::bootloader::{self, Dialect};
use crate::config::paths::Paths;
use crate::error::{Code, Error, Result};
use crate::phase::files::{self, BootfilesRecord, Marker};
use crate::slot::Roots;
use crate::sys::command::{Command, Speaker};

/// The program of the running system that puts its boot files back, looked for by name as it always was: boards replace it.
const HOOKS: &str = "hostapp-update-hooks";

/// The way back.
pub struct Undo<'a> {
    /// Where everything is.
    pub paths: &'a Paths,
    /// The root partitions.
    pub roots: &'a Roots,
    /// How the bootloader was told before the update: a new release may have moved to another way.
    pub dialect: &'a dyn Dialect,
    /// The update that this belongs to.
    pub transaction: String,
    /// Whether the running system's hooks are to put its boot files back.
    pub hooks: bool,
}

/// How far the way back led.
#[derive(Debug)]
#[must_use = "somebody has to be told what boots next"]
pub struct Undone {
    /// Whether the running system is the one that boots.
    pub selection: Result<()>,
    /// Whether its boot files are in place; `None` where nobody looked after them.
    pub boot_files: Option<Result<()>>,
    /// What else could not be done.
    pub others: Vec<Error>,
}

impl Undo<'_> {
    /// Selection, boot files, traces; in this order.
    pub fn run(&self) -> Undone {
        self.record();
        let mut undone = Undone { selection: self.select(), boot_files: None, others: Vec::new() };
        if undone.selection.is_err() {
            // The boot files belong to what is selected; and the breadcrumbs must stay for the next boot to find.
            return undone;
        }
        if self.hooks {
            undone.boot_files = Some(self.restore_boot_files());
            // They end with one that selects, too.
            undone.selection = self.select();
            if undone.selection.is_err() {
                return undone;
            }
        }
        let settled = match &undone.boot_files {
            Some(Ok(())) => BootfilesRecord::remove(self.paths),
            _ => BootfilesRecord::settle(self.paths, self.roots.active.slot),
        };
        let traces = [settled, files::remove_breadcrumbs(self.paths), Marker::remove(self.paths)];
        undone.others.extend(traces.into_iter().filter_map(Result::err));
        undone
    }

    /// While the other slot is selected, its boot files are the ones in place, and the hook that selected it has removed the record
    /// of that. From the next step on they are not those of what boots.
    fn record(&self) {
        let Some(other) = &self.roots.inactive else { return };
        let read = || -> Result<Option<BootfilesRecord>> {
            let state = bootloader::detect(self.paths)?.read()?;
            let missing = state.root.means(other) && BootfilesRecord::read(self.paths)?.is_none();
            Ok(missing.then(|| BootfilesRecord { transaction: self.transaction.clone(), owner: other.slot }))
        };
        let written = read().and_then(|record| record.map_or(Ok(()), |r| r.write(self.paths)));
        if let Err(e) = written {
            tracing::warn!("{e}; a power cut before the boot files are back would not be noticed");
        }
    }

    /// Selects the running system in every way that a bootloader may be told by now.
    fn select(&self) -> Result<()> {
        let running = &self.roots.active;
        let first = self.dialect.set(running, false);
        let now = bootloader::detect(self.paths)?;
        let second = if now.file() == self.dialect.file() { Ok(()) } else { now.set(running, false) };
        let state = bootloader::detect(self.paths)?.read()?;
        if state.root.means(running) && !state.upgrade_available {
            for e in [first, second].into_iter().filter_map(Result::err) {
                tracing::warn!("{e}; the running system is selected all the same");
            }
            return Ok(());
        }
        first.and(second)?;
        Err(Error::new(Code::BootStateUnwritable, format!("cannot select slot {}", running.slot))
            .object(now.file().display())
            .because("it was written, and does not read so"))
    }

    fn restore_boot_files(&self) -> Result<()> {
        let Err(e) = current_hooks(self.paths) else { return Ok(()) };
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

/// Runs the hooks of the running system, as for an update that did not come about.
fn current_hooks(paths: &Paths) -> Result<()> {
    let Some(program) = installed(paths) else { return own_run(paths) };
    tracing::info!("running the hooks of the running system");
    let failed = |why: std::io::Error| {
        Error::new(Code::HookFailed, "cannot run the hooks of the running system")
            .object(program.display())
            .because(why)
    };
    let command = Command::script(&program).map_err(failed)?.envs([("DURING_UPDATE", "0")]);
    let speaker = Speaker { name: HOOKS, full: HOOKS, hook: None, levels: true };
    let ended = command.run_logged(speaker, |_| {}).map_err(failed)?;
    if ended.end.is_success() { Ok(()) } else { Err(failed(ended.because())) }
}

/// The same hooks without the program that runs them, which is not installed.
fn own_run(paths: &Paths) -> Result<()> {
    tracing::warn!("{HOOKS} is not installed; copal runs the hooks of the running system itself");
    let run = Run {
        phases: Phases::FORWARD,
        dir: paths.at(DIR),
        during_update: "0".into(),
        limit: hooks::limit(std::env::var_os(hooks::LIMIT_VARIABLE))?,
        signals: Signals::RunToTheEnd,
    };
    if hooks::run(paths, &run)?.is_empty() {
        let text =
            format!("cannot run the hooks of the running system: there are none in {}", run.dir.display());
        return Err(Error::new(Code::HookFailed, text).object(run.dir.display()));
    }
    Ok(())
}

/// By the search path, below the root of this system.
fn installed(paths: &Paths) -> Option<PathBuf> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let usual = OsStr::new("/usr/bin:/usr/sbin:/bin:/sbin");
    let folders = std::env::split_paths(&search).chain(std::env::split_paths(usual));
    let mut places = folders.filter(|f| f.is_absolute()).map(|folder| paths.at(folder).join(HOOKS));
    places.find(|place| place.is_file())
}
