//! A model of the whole machine, with a power cut before every durable change: from each state that a cut or a run leaves, everything that
//! can happen next, until no new state appears.
//!
//! The programs are the real ones, on the files of a made-up device. The container engine, the health checks, the reboot and the bootloader
//! are replaced. A change is one rename, removal or sector; cuts within one of these are tested elsewhere (`tests/boot/state/cuts.rs`,
//! `tests/guest/hooks.rs`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

mod lost_engine;
mod machine;
#[path = "../kit/prove.rs"]
mod prove;
#[path = "../kit/tree.rs"]
mod tree;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::Write as _;
use std::rc::Rc;
use std::time::Duration;

use copal::boot_files::deploy::{DeployRequest, Purpose};
use copal::config::rollback_conf::RollbackConf;
use copal::disk::Facts;
use copal::engine::{Hostapp, Image};
use copal::error::{Code, Error, Result};
use copal::hooks;
use copal::hooks::builtin::BUILTINS;
use copal::job::{Source, UpdateSpec};
use copal::rollback::{Context, Platform, altboot, boot_check, clear_bootcount, commit_hooks, health};
use copal::slot::{Roots, Slot};
use copal::state::history::{Check, CheckResult};
use copal::state::phase::{Phase, observe};
use copal::update::installer::{Installer, When};
use copal::update::preflight::Device;
use copal::update::steps::Update;

use machine::{Lasting, Loader, Machine, boot, boot_files, content, factory, selection};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Good,
    Unhealthy,
    /// The checks fail, and the old system's hooks do not run.
    UnhealthyWithoutOldHooks,
    /// The checks fail, and the old system's root is lost at its start: it can neither be mounted nor booted.
    UnhealthyWithoutOldRoot,
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    Nowhere,
    BeforeHooks,
    BehindBootFiles,
    BehindSelection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Update(Fails),
    OrderlyReboot,
}

const DAYS: &[&[Action]] = &[
    &[Action::OrderlyReboot],
    &[Action::Update(Fails::Nowhere)],
    &[Action::Update(Fails::BeforeHooks)],
    &[Action::Update(Fails::BehindBootFiles)],
    &[Action::Update(Fails::BehindSelection)],
    &[Action::Update(Fails::Nowhere), Action::OrderlyReboot],
    &[Action::Update(Fails::Nowhere), Action::Update(Fails::Nowhere)],
    &[Action::Update(Fails::Nowhere), Action::Update(Fails::BehindBootFiles)],
];

fn hooks(m: &Machine, during_update: bool, owner: Slot, stop: Fails) -> Result<()> {
    let paths = m.paths();
    let roots = Roots::of(&Facts::gather(&paths)?)?;
    let purpose = if during_update { Purpose::Update } else { Purpose::Undo };
    let mut request = DeployRequest::new(&paths, roots.in_slot(owner).unwrap(), purpose)?;
    request.source = m.release(owner);
    request.deploy()?;
    if stop == Fails::BehindBootFiles {
        return Err(wanted());
    }
    for name in ["80-rollback", m.loader.hook()] {
        let hook = BUILTINS.iter().find(|b| b.names.contains(&name)).unwrap();
        (hook.run)(&hooks::Context { paths: paths.clone(), during_update, called: name.to_owned() })?;
    }
    Ok(())
}

fn wanted() -> Error {
    Error::new(Code::HookFailed, "fails as it should")
}

struct Engine<'a> {
    machine: &'a Machine,
    target: Slot,
    fails: Fails,
}

impl Installer for Engine<'_> {
    fn end_hooks(&self) -> Result<()> {
        Ok(())
    }

    fn has_left_hooks(&self) -> bool {
        false
    }

    fn end_left_hooks(&self) -> Result<()> {
        Ok(())
    }

    fn keep(&self, _transaction: &str) -> Result<()> {
        copal::state::files::keep_vpn_state(&self.machine.paths(), true)
    }

    fn install(&self) -> Result<(Image, Hostapp)> {
        for content in ["empty", "partial", "v2"] {
            self.machine.fill(self.target, content);
        }
        let image = Image { reference: "image".into(), id: "id".into(), size: 0 };
        Ok((image, Hostapp { id: "hostapp".into(), boot: "/boot".into() }))
    }

    fn hooks_here(&self, when: When) -> Result<()> {
        let fails = match when {
            When::Before => self.fails == Fails::BeforeHooks,
            When::After => self.fails == Fails::BehindSelection,
        };
        if fails { Err(wanted()) } else { Ok(()) }
    }

    fn forward_hooks(&self, _image: &Image) -> Result<()> {
        hooks(self.machine, true, self.target, self.fails)
    }

    fn count(&self) -> Result<u64> {
        Ok(1)
    }
}

fn update(m: &Machine, fails: Fails) {
    let paths = m.paths();
    let spec = UpdateSpec::new(Source::Reference("image".into()));
    let roots = Roots::of(&Facts::gather(&paths).unwrap()).unwrap();
    let target = roots.inactive().unwrap().clone();
    let device = match Device::of(&paths, roots, target, false) {
        Ok(device) => device,
        Err(e) => {
            assert_eq!(e.code(), Code::UpdateRefused, "{e}");
            return;
        }
    };
    let engine = Engine { machine: m, target: device.target.slot, fails };
    let update = Update {
        spec: &spec,
        paths: &paths,
        device: Some(&device),
        installer: &engine,
        restore: &|| hooks(m, false, m.running, Fails::Nowhere),
        transaction: "t".into(),
    };
    match update.run() {
        Ok(_) => assert_eq!(fails, Fails::Nowhere),
        Err(e) => assert!(e.message().contains("fails as it should"), "{e}"),
    }
}

fn phase_of(m: &Machine) -> Phase {
    let paths = m.paths();
    let roots = Roots::of(&Facts::gather(&paths).unwrap()).unwrap();
    observe(&paths, &roots).unwrap().phase
}

fn programs_of_the_boot(m: &Machine, healthy: bool, old_hooks: bool) -> bool {
    let paths = m.paths();
    let conf = RollbackConf::default();
    let rebooted = Cell::new(false);
    let platform = Platform {
        wait: Box::new(|time| assert!(time <= Duration::from_secs(900))),
        checks: Box::new(|| {
            let result = if healthy { CheckResult::Passed } else { CheckResult::Failed };
            let (name, reason) = ("model".into(), String::new());
            vec![Check { name, required: true, result, reason, seconds: 0.0 }]
        }),
        previous_is_new_enough: Box::new(|| true),
        old_hooks: Box::new(|| {
            if old_hooks { hooks(m, true, m.running.other(), Fails::Nowhere) } else { Err(wanted()) }
        }),
        old_boot_files: Box::new(|| {
            let roots = Roots::of(&Facts::gather(&paths)?)?;
            let mut request = DeployRequest::new(&paths, roots.inactive()?, Purpose::Undo)?;
            request.source = m.release(m.running.other());
            request.deploy().map(drop)
        }),
        current_hooks: Box::new(|| hooks(m, false, m.running, Fails::Nowhere)),
        commit_hooks: Box::new(|| Ok(())),
        end_hooks: Box::new(|| Ok(())),
        hold_signals: false,
        old_is_there: Box::new(|| true),
        reboot: Box::new(|| {
            rebooted.set(true);
            Error::new(Code::RebootFailed, "reboots")
        }),
    };
    let context = Context::look(&paths, &platform).unwrap();
    let crumb = |name: &str| paths.state().join(name).exists();
    let stays = |e: &Error| context.roots.inactive().is_err() && e.code() == Code::SlotUnknown;
    let ended = |result: Result<()>| {
        if let Err(e) = result {
            assert!(rebooted.get() || stays(&e), "{e}");
        }
        rebooted.get()
    };
    ended(boot_check::run_with(&context))
        || crumb("rollback-altboot-breadcrumb") && ended(altboot::run_with(&context))
        || crumb("rollback-health-breadcrumb") && ended(health::run_with(&context, &conf))
        || crumb("copal/commit-due") && ended(commit_hooks::run_with(&context))
}

type State = (Lasting, Slot);

struct Model {
    loader: Loader,
    health: Health,
    machines: BTreeMap<Slot, Rc<Machine>>,
    seen: HashMap<State, usize>,
    todo: VecDeque<usize>,
    states: Vec<State>,
    why: Vec<(usize, String)>,
    rested: HashSet<(Lasting, Slot, Slot)>,
    runs: usize,
    cuts: usize,
    complaints: BTreeMap<String, (usize, String)>,
}

impl Model {
    fn new(loader: Loader, health: Health) -> Model {
        let machine = |slot| {
            let machine = Machine::new(loader, slot);
            if slot == Slot::B && health == Health::UnhealthyWithoutOldRoot {
                machine.lose_other();
            }
            (slot, Rc::new(machine))
        };
        let mut model = Model {
            loader,
            health,
            machines: [Slot::A, Slot::B].map(machine).into(),
            seen: HashMap::new(),
            todo: VecDeque::new(),
            states: Vec::new(),
            why: Vec::new(),
            rested: HashSet::new(),
            runs: 0,
            cuts: 0,
            complaints: BTreeMap::new(),
        };
        model.add((factory(loader), Slot::A), 0, "factory".into());
        model
    }

    fn add(&mut self, state: State, from: usize, how: String) {
        if self.seen.contains_key(&state) {
            return;
        }
        let number = self.states.len();
        self.seen.insert(state.clone(), number);
        self.states.push(state);
        self.why.push((from, how));
        self.todo.push_back(number);
    }

    fn path(&self, mut number: usize) -> String {
        let mut steps = Vec::new();
        while number != 0 {
            let (from, how) = &self.why[number];
            steps.push(how.clone());
            number = *from;
        }
        steps.reverse();
        steps.join(" > ")
    }

    fn complain(&mut self, what: &str, from: usize, how: &str) {
        let path = format!("{} > {how}", self.path(from));
        self.complaints.entry(what.to_owned()).or_insert((0, path)).0 += 1;
    }

    /// Whatever can happen next, from each state, in any order; at most so many runs of the programs.
    fn explore(&mut self, most: usize, mut random: fastrand::Rng) {
        while !self.todo.is_empty() && self.runs < most {
            let number = self.todo.swap_remove_back(random.usize(..self.todo.len())).unwrap();
            let (mut state, good) = self.states[number].clone();
            let (loader, health) = (self.loader, self.health);
            let lives = |state: &Lasting, slot: Slot| {
                health != Health::Dead || slot == good || content(state, slot) == "v1"
            };
            match boot(loader, &mut state, lives) {
                Ok(Slot::B) if health == Health::UnhealthyWithoutOldRoot => self.alone(number, state),
                Ok(running) => self.boot(number, &state, good, running),
                // After so many cuts without a trial the bootloader falls back rightly.
                Err(_) if health == Health::UnhealthyWithoutOldRoot && selection(loader, &state).1 => {}
                Err(what) => self.complain(what, number, "boot"),
            }
        }
    }

    /// The programs of a boot, then each action, once for each state at rest.
    fn boot(&mut self, number: usize, state: &Lasting, good: Slot, running: Slot) {
        let healthy = self.health == Health::Good || running == good;
        let old_hooks = self.health != Health::UnhealthyWithoutOldHooks;
        let how = format!("{running} boots");
        let m = self.machines[&running].clone();
        m.start(state);
        let rebooted = programs_of_the_boot(&m, healthy, old_hooks);
        if rebooted {
            clear_bootcount::run(&m.paths()).unwrap();
        }
        let (rest, good) = self.keep(number, &how, &m, good);
        if rebooted {
            return;
        }
        self.look(number, &how, running, &rest, good, true);
        if !self.rested.insert((rest.clone(), good, running)) {
            return;
        }
        for day in DAYS {
            let how = format!("{how}, {day:?}");
            m.start(&rest);
            for action in *day {
                match action {
                    Action::Update(fails) => update(&m, *fails),
                    Action::OrderlyReboot => clear_bootcount::run(&m.paths()).unwrap(),
                }
            }
            let phase = phase_of(&m);
            let (end, good) = self.keep(number, &how, &m, good);
            if phase == Phase::Healthy {
                self.look(number, &how, running, &end, good, false);
            }
        }
    }

    /// A boot of the new system after the old one is lost: no update, no proof, but nothing else is left.
    fn alone(&mut self, number: usize, mut state: Lasting) {
        let (running, how) = (Slot::B, "B boots alone");
        state.insert(machine::slot_file(Slot::A), b"lost".into());
        let m = self.machines[&running].clone();
        m.start(&state);
        let rebooted = programs_of_the_boot(&m, false, true);
        let (rest, good) = self.keep(number, how, &m, running);
        if rebooted {
            self.complain("a reboot into nothing", number, how);
            return;
        }
        self.look(number, how, running, &rest, good, true);
        if !rest.contains_key("mnt/state/rollback-health-failed") {
            self.complain("the owner is not notified", number, how);
        }
    }

    /// Adds the states that every cut of a run has left, and its end. Returns that, with the slot committed by then.
    fn keep(&mut self, number: usize, how: &str, m: &Machine, mut good: Slot) -> (Lasting, Slot) {
        self.runs += 1;
        let (cuts, end) = m.stop();
        self.cuts += cuts.len();
        for (n, cut) in cuts.into_iter().enumerate() {
            good = self.proven(&cut, m.running, good);
            self.add((cut, good), number, format!("{how}, cut {n}"));
        }
        good = self.proven(&end, m.running, good);
        self.add((end.clone(), good), number, how.to_owned());
        (end, good)
    }

    /// The verdict is durable once the system on trial is selected for good.
    fn proven(&self, state: &Lasting, running: Slot, good: Slot) -> Slot {
        let (root, trial, _) = selection(self.loader, state);
        let stays = root == running && !trial && self.health == Health::Good;
        if stays { running } else { good }
    }

    fn look(&mut self, number: usize, how: &str, running: Slot, state: &Lasting, good: Slot, idle: bool) {
        let m = self.machines[&running].clone();
        let phase = phase_of(&m);
        if phase != Phase::Healthy {
            assert!(idle, "{phase}");
            self.complain(&format!("an idle day ends in {phase}"), number, how);
            return;
        }
        let own = format!("{running} {}", content(state, running));
        if boot_files(state) != Some(own.as_str()) {
            self.complain("all is well, with the boot files of another", number, how);
        }
        if good != running {
            self.complain("a system that has not proved itself is taken for healthy", number, how);
        }
        let (root, _, count) = selection(self.loader, state);
        if root != running || count != 0 {
            self.complain("all is well, with another root selected or a count left over", number, how);
        }
        let left: Vec<_> = state.keys().filter(|p| LEFT.iter().any(|l| p.ends_with(l))).collect();
        if !left.is_empty() {
            self.complain(&format!("all is well, with {left:?} left over"), number, how);
        }
    }
}

const LEFT: [&str; 6] =
    ["breadcrumb", "copal/bootfiles", "copal/rollback", "copal/commit-due", "copal/trial", "-variables"];

/// Runs of the programs in a sample.
const SAMPLE: usize = 120;

fn run(test: &str, loader: Loader, health: Health) {
    match prove::samples("model", test) {
        None => explored(loader, health, usize::MAX, fastrand::Rng::with_seed(0)),
        Some(samples) => samples.into_iter().for_each(|random| explored(loader, health, SAMPLE, random)),
    }
}

fn explored(loader: Loader, health: Health, most: usize, random: fastrand::Rng) {
    let mut model = Model::new(loader, health);
    model.explore(most, random);
    let (states, runs, cuts) = (model.states.len(), model.runs, model.cuts);
    // Not captured by the test: every log shows how far this reaches.
    let mut out = std::io::stdout();
    writeln!(out, "{loader:?}, {health:?}: {states} states, {runs} runs, {cuts} cuts").unwrap();
    let complaints: Vec<String> = model
        .complaints
        .iter()
        .map(|(what, (n, how))| format!("{what} ({n} times), first by: {how}"))
        .collect();
    assert!(complaints.is_empty(), "{loader:?}, {health:?}:\n{}", complaints.join("\n"));
    // Fewer would mean that something no longer happens.
    assert!(model.states.len() > 20, "only {} states", model.states.len());
}

/// A test for each pair: they run in parallel.
macro_rules! explore {
    ($($name:ident: $loader:ident $health:ident;)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), Loader::$loader, Health::$health);
        })*
    };
}

explore! {
    uboot_good: Uboot Good;
    uboot_unhealthy: Uboot Unhealthy;
    uboot_unhealthy_without_old_hooks: Uboot UnhealthyWithoutOldHooks;
    uboot_unhealthy_without_old_root: Uboot UnhealthyWithoutOldRoot;
    uboot_dead: Uboot Dead;
    grub_good: Grub Good;
    grub_unhealthy: Grub Unhealthy;
    grub_unhealthy_without_old_hooks: Grub UnhealthyWithoutOldHooks;
    grub_unhealthy_without_old_root: Grub UnhealthyWithoutOldRoot;
    grub_dead: Grub Dead;
    balena_good: Balena Good;
    balena_unhealthy: Balena Unhealthy;
    balena_unhealthy_without_old_hooks: Balena UnhealthyWithoutOldHooks;
    balena_unhealthy_without_old_root: Balena UnhealthyWithoutOldRoot;
    balena_dead: Balena Dead;
}
