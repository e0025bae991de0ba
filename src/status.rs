//! Where the device stands, for people and programs. Reads only, and tells what it can: one part that cannot be read never
//! hides the others.

use serde::Serialize;

use crate::boot_state::{self, Backend, BootState, Named};
use crate::config::paths::Paths;
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::hooks::{self, RunningHook};
use crate::slot::hostapp;
use crate::slot::{Root, Roots, Slot};
use crate::state::files::{self, BootfilesRecord, Flag, RollbackRecord};
use crate::state::history::{self, Event, Record};
use crate::state::phase::{self, Phase};
use crate::update::lock::Holder;

/// Everything that is known.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Version of copal.
    pub copal: &'static str,
    /// Where the device stands; absent where it cannot be told.
    pub phase: Option<&'static str>,
    /// What that means.
    pub meaning: Option<&'static str>,
    /// The slot that runs.
    pub running: Option<Slot>,
    /// The slot that the bootloader takes next.
    pub next: Option<Slot>,
    /// What the bootloader goes by.
    pub boot: Option<Boot>,
    /// The two roots, as far as they are mounted.
    pub slots: Vec<SlotStatus>,
    /// Whether a breadcrumb tells the supervisor to keep its hands off.
    pub breadcrumb: Option<bool>,
    /// What became of earlier updates.
    pub flags: Vec<&'static str>,
    /// Boot files of this slot are being deployed, or that was cut off.
    pub bootfiles: Option<Slot>,
    /// A rollback to this slot is in progress.
    pub rollback: Option<Slot>,
    /// What the last update has come to so far.
    pub last_update: Option<Record>,
    /// The last rollback, with what failed.
    pub last_rollback: Option<Record>,
    /// How many rollbacks from the same release are known, that one included.
    pub rollbacks: usize,
    /// Every record, oldest first; only where they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<Record>>,
    /// Who is updating now.
    pub update: Option<Holder>,
    /// The hook that runs now.
    pub hook: Option<RunningHook>,
    /// What could not be told, and why.
    pub problems: Vec<Problem>,
}

/// What the bootloader goes by.
#[derive(Debug, Clone, Serialize)]
pub struct Boot {
    /// How it is told: `U-Boot`, `GRUB`, …
    pub backend: &'static str,
    /// The file that tells it.
    pub file: String,
    /// The selected root as that file names it.
    pub root: String,
    /// Whether the selection is on trial.
    pub upgrade_available: bool,
    /// How often it was tried.
    pub bootcount: u32,
    /// How many attempts the bootloader makes before it takes the other root; absent where it does not count.
    pub limit: Option<u32>,
    /// Whether it takes the other root already.
    pub exceeded: bool,
}

/// A root and what is on it.
#[derive(Debug, Clone, Serialize)]
pub struct SlotStatus {
    /// Which one.
    pub slot: Slot,
    /// Whether it is the running one.
    pub running: bool,
    /// Kernel name of what is mounted.
    pub device: String,
    /// Number of its partition.
    pub partition: u32,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Its current hostapp.
    pub hostapp: Option<String>,
    /// The release of that.
    pub version: Option<String>,
    /// The higher one was installed later.
    pub counter: Option<u64>,
}

/// Something that could not be told.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// Stable code of the error.
    pub code: &'static str,
    /// What and why.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl From<&Error> for Problem {
    fn from(e: &Error) -> Self {
        Problem { code: e.code().as_str(), message: e.message(), hint: e.hint().to_owned() }
    }
}

/// Collects what failed.
#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        let e = match result {
            Ok(value) => return Some(value),
            Err(e) => Problem::from(&e),
        };
        // Two parts may fail for one reason.
        if !self.0.iter().any(|p| p.message == e.message) {
            self.0.push(e);
        }
        None
    }
}

/// Reads where the device stands.
#[must_use]
pub fn read(paths: &Paths) -> Status {
    let mut problems = Problems::default();
    let facts = problems.keep(Facts::gather(paths));
    let roots = facts.as_ref().and_then(|f| problems.keep(Roots::of(f)));
    let observed = roots.as_ref().and_then(|r| problems.keep(phase::observe(paths, r)));
    let boot = match &observed {
        Some(o) => Some(Boot::of(&*o.backend, &o.state)),
        None => problems.keep(boot_alone(paths)),
    };
    let phase = observed.as_ref().map(|o| o.phase);
    let running = roots.as_ref().map(|r| r.active.slot);
    let next = boot.as_ref().zip(roots.as_ref()).and_then(|(b, r)| b.next(observed.as_ref()?.selected?, r));
    let record = problems.keep(BootfilesRecord::read(paths)).flatten();
    let rollback = problems.keep(RollbackRecord::read(paths)).flatten();
    let told = HistorySummary::of(&history::read(paths));
    Status {
        copal: env!("CARGO_PKG_VERSION"),
        phase: phase.map(Phase::as_str),
        meaning: phase.map(Phase::meaning),
        running,
        next,
        boot,
        slots: facts.as_ref().zip(roots.as_ref()).map(|(f, r)| held(f, r)).unwrap_or_default(),
        breadcrumb: problems.keep(files::any_breadcrumb(paths)),
        flags: Flag::ALL.into_iter().filter(|f| f.is_up(paths).unwrap_or(false)).map(Flag::name).collect(),
        bootfiles: record.map(|r| r.owner),
        rollback: rollback.map(|r| r.target),
        last_update: told.update,
        last_rollback: told.rollback,
        rollbacks: told.rollbacks,
        history: None,
        update: problems.keep(holder(paths)).flatten(),
        hook: hooks::running(paths),
        problems: problems.0,
    }
}

/// [`read`] with every record of the history.
#[must_use]
pub fn read_with_history(paths: &Paths) -> Status {
    Status { history: Some(history::read(paths)), ..read(paths) }
}

/// What the history tells.
struct HistorySummary {
    update: Option<Record>,
    rollback: Option<Record>,
    rollbacks: usize,
}

impl HistorySummary {
    fn of(history: &[Record]) -> HistorySummary {
        let last = |is: &dyn Fn(&Record) -> bool| history.iter().rev().find(|r| is(r)).cloned();
        let rollback = last(&|r| r.event.is_rollback());
        let release = |r: &Record| r.from.as_ref().and_then(|side| side.version.clone());
        let same = |r: &&Record| {
            // One that did not come about is not counted with the one that did.
            matches!(r.event, Event::RolledBack | Event::Altboot)
                && rollback.as_ref().is_some_and(|last| release(last) == release(r))
        };
        HistorySummary {
            update: last(&|r| !r.event.is_rollback() && r.event != Event::Unknown),
            rollbacks: history.iter().filter(same).count(),
            rollback,
        }
    }
}

/// Only root can open the file of the lock.
fn holder(paths: &Paths) -> Result<Option<Holder>> {
    Holder::of(paths).map_err(|e| {
        Error::new(Code::Io, "cannot tell whether an update is running")
            .because(e)
            .with_hint("run it as root")
    })
}

fn boot_alone(paths: &Paths) -> Result<Boot> {
    let backend = boot_state::detect(paths)?;
    let state = backend.read()?;
    Ok(Boot::of(&*backend, &state))
}

impl Boot {
    fn of(backend: &dyn Backend, state: &BootState) -> Boot {
        Boot {
            backend: backend.name(),
            file: backend.file().display().to_string(),
            root: match &state.root {
                Named::Index(index) => index.to_string(),
                Named::Slot(slot) => slot.letter().to_owned(),
                Named::Other(text) => text.clone(),
            },
            upgrade_available: state.upgrade_available,
            bootcount: state.bootcount,
            limit: backend.counts().then(|| backend.limit()),
            exceeded: backend.is_exceeded(state.bootcount),
        }
    }

    /// What the bootloader takes next: a count beyond the limit acts whether or not the selection is on trial.
    fn next(&self, selected: Slot, roots: &Roots) -> Option<Slot> {
        let next = if self.exceeded { selected.other() } else { selected };
        roots.in_slot(next).map(|r| r.slot)
    }
}

fn held(facts: &Facts, roots: &Roots) -> Vec<SlotStatus> {
    let mut all = vec![of_root(facts, &roots.active, true)];
    all.extend(roots.inactive.as_ref().map(|r| of_root(facts, r, false)));
    all.sort_by_key(|h| h.slot);
    all
}

fn of_root(facts: &Facts, root: &Root, running: bool) -> SlotStatus {
    let paths = facts.paths();
    let place = if running { paths.active() } else { paths.inactive() };
    SlotStatus {
        slot: root.slot,
        running,
        device: facts.device(root.dev).map(|d| d.name.clone()).unwrap_or_default(),
        partition: root.index,
        encrypted: root.encrypted,
        hostapp: hostapp::container(&place),
        version: if running { hostapp::running_version(paths) } else { hostapp::version(&place) },
        counter: hostapp::counter(&place),
    }
}
