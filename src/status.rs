//! Where the device stands, for people and programs. Reads only, and reports what it can: one part that cannot be read never
//! hides the others.

use std::io;
use std::path::Path;

use serde::Serialize;

use crate::boot_state::{self, Backend, BootState, Named};
use crate::config::paths::Paths;
use crate::device_tree::live::Live;
use crate::device_tree::{self, ExpectedFiles, Tree};
use crate::disk::Facts;
use crate::error::{Code, Error, Result};
use crate::hooks::{self, RunningHook};
use crate::job::lock::Holder;
use crate::slot::hostapp;
use crate::slot::{self, Root, Roots, Slot};
use crate::state::files::{self, BootfilesRecord, Flag, RollbackRecord};
use crate::state::history::{self, Event, Record};
use crate::state::phase::{self, Phase};
use crate::sys::mount;

#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Version of copal, with its commit.
    pub copal: &'static str,
    /// Absent where it cannot be determined.
    pub phase: Option<&'static str>,
    /// What the phase means.
    pub meaning: Option<&'static str>,
    pub running: Option<Slot>,
    /// The slot that the bootloader starts next.
    pub next: Option<Slot>,
    pub boot: Option<Boot>,
    /// The slots whose root is mounted.
    pub slots: Vec<SlotStatus>,
    /// Device trees and overlays that the owner's settings name; only after [`with_device_trees`](Self::with_device_trees).
    pub device_trees: Vec<Tree>,
    /// The running kernel's device tree, where it has one; read with those.
    pub live_tree: Option<Live>,
    /// Whether a breadcrumb keeps the supervisor from rebooting the device.
    pub breadcrumb: Option<bool>,
    /// The result of earlier updates.
    pub flags: Vec<&'static str>,
    /// Boot files of this slot are being deployed, or were when the power failed.
    pub bootfiles: Option<Slot>,
    /// A rollback to this slot is in progress.
    pub rollback: Option<Slot>,
    pub last_update: Option<Record>,
    pub last_rollback: Option<Record>,
    /// Rollbacks from the same release that the history has, the last one included.
    pub rollbacks: usize,
    /// Every record, oldest first; only from [`read_with_history`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Vec<Record>>,
    /// The same, always there, for the text.
    #[serde(skip)]
    pub records: Vec<Record>,
    /// The update that runs now.
    pub update: Option<Holder>,
    pub hook: Option<RunningHook>,
    /// Keys of this object that this user may not read; nothing is known about them.
    pub needs_root: Vec<&'static str>,
    /// What could not be read, and why.
    pub problems: Vec<Problem>,
}

impl Status {
    /// Apart, since it reads each of the files to its end: the service reads the status often.
    #[must_use]
    pub(crate) fn with_device_trees(mut self, paths: &Paths) -> Status {
        let expected = ExpectedFiles::read(paths);
        if hostapp::needs_root(&paths.active()) && expected.named.iter().any(device_tree::Named::is_in_root) {
            self.needs_root.push("device_trees");
        } else {
            self.device_trees = expected.trees(paths);
        }
        match Live::read(paths) {
            Ok(live) => self.live_tree = live,
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => self.needs_root.push("live_tree"),
            Err(e) => tracing::debug!("cannot read the kernel's device tree: {e}"),
        }
        self
    }

    #[must_use]
    pub(crate) fn is_for_root(&self, key: &str) -> bool {
        self.needs_root.contains(&key)
    }
}

/// What the bootloader reads to choose a root.
#[derive(Debug, Clone, Serialize)]
pub struct Boot {
    /// `U-Boot`, `GRUB`, …
    pub backend: &'static str,
    pub file: String,
    /// The root that this file names, or the bootloader's default.
    pub root: String,
    /// Whether the bootloader reads `root` in the file.
    pub selected: bool,
    /// What is wrong with the file.
    pub damage: Option<String>,
    pub upgrade_available: bool,
    /// Boot attempts so far.
    pub bootcount: u32,
    /// Attempts that the bootloader makes before it falls back; absent where it does not count.
    pub limit: Option<u32>,
    /// Whether the bootloader falls back at the next boot.
    pub exceeded: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct SlotStatus {
    pub slot: Slot,
    pub running: bool,
    /// Kernel name of the block device.
    pub device: String,
    pub partition: u32,
    pub encrypted: bool,
    /// The container of the current hostapp.
    pub hostapp: Option<String>,
    pub version: Option<String>,
    /// The slot with the higher number was installed later.
    pub counter: Option<u64>,
}

/// Something that could not be read.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    pub code: &'static str,
    pub message: String,
    pub hint: String,
}

impl From<&Error> for Problem {
    fn from(e: &Error) -> Self {
        Problem { code: e.code().as_str(), message: e.message(), hint: e.hint().to_owned() }
    }
}

#[derive(Default)]
struct Problems {
    needs_root: Vec<&'static str>,
    all: Vec<Problem>,
}

impl Problems {
    /// As [`keep`](Self::keep). A file that only root may read is not a problem.
    fn part<T>(&mut self, key: &'static str, result: Result<T>) -> Option<T> {
        if result.as_ref().is_err_and(|e| e.code() == Code::NotRoot) {
            self.needs_root.push(key);
            return None;
        }
        self.keep(result)
    }

    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        let e = match result {
            Ok(value) => return Some(value),
            Err(e) => Problem::from(&e),
        };
        // Two parts may fail for the same reason.
        if !self.all.iter().any(|p| p.message == e.message) {
            self.all.push(e);
        }
        None
    }
}

/// Why this machine is neither a balenaOS device nor a flasher medium; `None` if it may be one, even a damaged one.
#[must_use]
pub(crate) fn no_device(paths: &Paths) -> Option<String> {
    let release = hostapp::running_release(paths).unwrap_or_default();
    let is_balena = release.get("ID").is_some_and(|id| id.starts_with("balena") || id.starts_with("resin"));
    let mounts = mount::read_mounts(&paths.at("/proc/self/mountinfo")).ok()?;
    let places = ["/mnt/boot", slot::ACTIVE, slot::INACTIVE].map(Path::new);
    let is_mounted = mounts.iter().any(|m| places.contains(&m.point.as_path()));
    if is_balena || is_mounted || paths.flasher_flag().exists() || paths.flasher_conf().exists() {
        return None;
    }
    let name = release.get("PRETTY_NAME").map(|name| format!(" (it runs {name})")).unwrap_or_default();
    Some(format!("this machine is not a balenaOS device{name}: it has neither slots nor a boot partition"))
}

#[must_use]
pub fn read(paths: &Paths) -> Status {
    let mut problems = Problems::default();
    let facts = problems.keep(Facts::gather(paths));
    let roots = facts.as_ref().and_then(|f| problems.keep(Roots::of(f)));
    let observed = roots.as_ref().and_then(|r| problems.part("phase", phase::observe(paths, r)));
    if problems.needs_root.contains(&"phase") {
        problems.needs_root.push("next");
    }
    let boot = match &observed {
        Some(o) => Some(Boot::of(&*o.backend, &o.state)),
        None => problems.keep(boot_alone(paths)),
    };
    let phase = observed.as_ref().map(|o| o.phase);
    let running = roots.as_ref().map(|r| r.active.slot);
    let next = boot.as_ref().zip(roots.as_ref()).and_then(|(b, r)| b.next(observed.as_ref()?.selected?, r));
    for e in files::irregular_records(paths) {
        problems.keep::<()>(Err(e));
    }
    let record = problems.keep(BootfilesRecord::read(paths)).flatten();
    let rollback = problems.keep(RollbackRecord::read(paths)).flatten();
    let records = history::read(paths);
    let summary = HistorySummary::of(&records);
    let update = problems.part("update", holder(paths)).flatten();
    let hook = problems.part("hook", hook(paths)).flatten();
    let slots = facts.as_ref().zip(roots.as_ref()).map(|(f, r)| slots(f, r)).unwrap_or_default();
    if [paths.active(), paths.inactive()].iter().any(|root| hostapp::needs_root(root)) {
        problems.needs_root.push("slots");
    }
    if history::needs_root(paths) {
        problems.needs_root.extend(["last_update", "last_rollback"]);
    }
    Status {
        copal: crate::version::COPAL,
        phase: phase.map(Phase::as_str),
        meaning: phase.map(Phase::meaning),
        running,
        next,
        boot,
        slots,
        device_trees: Vec::new(),
        live_tree: None,
        breadcrumb: problems.keep(files::any_breadcrumb(paths)),
        flags: Flag::ALL.into_iter().filter(|f| f.is_up(paths).unwrap_or(false)).map(Flag::name).collect(),
        bootfiles: record.map(|r| r.owner),
        rollback: rollback.map(|r| r.target),
        last_update: summary.update,
        last_rollback: summary.rollback,
        rollbacks: summary.rollbacks,
        history: None,
        records,
        update,
        hook,
        needs_root: problems.needs_root,
        problems: problems.all,
    }
}

/// [`read`] with every record of the history.
#[must_use]
pub fn read_with_history(paths: &Paths) -> Status {
    let status = read(paths);
    Status { history: Some(status.records.clone()), ..status }
}

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
            // A rollback that failed is not counted.
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

/// Only root can open the lock file.
fn holder(paths: &Paths) -> Result<Option<Holder>> {
    Holder::of(paths).map_err(|e| undetermined("an update", e))
}

fn hook(paths: &Paths) -> Result<Option<RunningHook>> {
    hooks::running(paths).map_err(|e| undetermined("a hook", e))
}

fn undetermined(what: &str, e: io::Error) -> Error {
    let code = if e.kind() == io::ErrorKind::PermissionDenied { Code::NotRoot } else { Code::Io };
    let text = format!("cannot determine whether {what} is running");
    Error::new(code, text)
        .because(e)
        .with_hint("run it as root, or restart the device, which empties /run/copal")
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
            selected: state.selected,
            damage: state.damage.map(|damage| damage.to_string()),
            upgrade_available: state.upgrade_available,
            bootcount: state.bootcount,
            limit: backend.counts().then(|| backend.limit()),
            exceeded: backend.is_exceeded(state.bootcount),
        }
    }

    /// A count past the limit makes the bootloader fall back, whether or not the selection is on trial.
    fn next(&self, selected: Slot, roots: &Roots) -> Option<Slot> {
        let next = if self.exceeded { selected.other() } else { selected };
        roots.in_slot(next).map(|r| r.slot)
    }
}

fn slots(facts: &Facts, roots: &Roots) -> Vec<SlotStatus> {
    let mut all = vec![of_root(facts, &roots.active, true)];
    all.extend(roots.inactive().ok().map(|r| of_root(facts, r, false)));
    all.sort_by_key(|s| s.slot);
    all
}

fn of_root(facts: &Facts, root: &Root, running: bool) -> SlotStatus {
    let paths = facts.paths();
    let root_folder = if running { paths.active() } else { paths.inactive() };
    SlotStatus {
        slot: root.slot,
        running,
        device: facts.device(root.dev).map(|d| d.name.clone()).unwrap_or_default(),
        partition: root.index,
        encrypted: root.encrypted,
        hostapp: hostapp::container(&root_folder),
        version: if running { hostapp::running_version(paths) } else { hostapp::version(&root_folder) },
        counter: hostapp::counter(&root_folder),
    }
}
