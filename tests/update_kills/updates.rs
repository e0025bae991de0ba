//! A whole update, killed after each change.

use std::collections::HashSet;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::judge::{Root, Verdict, difference, ending, events, judge, state};
use crate::needs;
use crate::rig::{Dialect, Rig, View};
use crate::shim::{self, End};
use crate::tree::Tree;

pub const UPDATE: [&str; 3] = ["hostapp-update", "-f", "/mnt/data/os.tar"];

pub fn can_run(test: &str) -> bool {
    needs::can_run(test) && shim::can_run(test)
}

/// One device, and how an undisturbed update ends there.
pub struct Bench {
    pub rig: Rig,
    /// As an update leaves it.
    pub updated: Tree,
    wanted: Vec<String>,
    /// States from which the next update has succeeded.
    seen: HashSet<Vec<String>>,
    pub points: usize,
    pub again: usize,
    pub refused: usize,
    began: Instant,
}

impl Bench {
    pub fn new(dialect: Dialect, places: &[&str]) -> Bench {
        let rig = Rig::new(dialect, places);
        let (status, said) = rig.run_freely(View::Running, &UPDATE);
        assert_eq!(status, Some(0), "{said}");
        let updated = rig.tree();
        let verdict = judge(&updated, rig.pristine(), dialect).unwrap();
        assert_eq!(verdict.boots, Root::B, "an undisturbed update");
        let wanted = ending(&updated).unwrap();
        rig.restore(rig.pristine());
        let began = Instant::now();
        Bench { rig, updated, wanted, seen: HashSet::new(), points: 0, again: 0, refused: 0, began }
    }

    /// Runs `argv` from `start` and kills it after its change number `n`; `None` when it has ended before. Whatever was left is
    /// judged, and updated from.
    pub fn point(&mut self, start: &Tree, argv: &[&str], n: usize) -> Option<Result<Verdict, String>> {
        self.rig.restore(start);
        let (traced, said) = self.rig.run(View::Running, argv, Some(n));
        if traced.end != End::Killed {
            return None;
        }
        self.points += 1;
        let verdict = self.left();
        Some(
            verdict.map_err(|e| format!("killed after {n}, {}: {e}\n{said}", traced.changes.last().unwrap())),
        )
    }

    /// Judges what is there now, and updates from it in both ways.
    pub fn left(&mut self) -> Result<Verdict, String> {
        let rig = &self.rig;
        // Hooks fail once.
        rig.mend();
        let tree = rig.tree();
        let verdict = judge(&tree, rig.pristine(), rig.dialect)?;
        let mut state = state(&tree);
        state.push(format!("mounts {:?}", rig.mounted()));
        if self.seen.contains(&state) {
            return Ok(verdict);
        }
        self.update_again().map_err(|e| format!("in the same boot: {e}"))?;
        self.rig.restore(&tree);
        self.rig.reboot();
        match verdict.boots {
            Root::A => self.update_again(),
            Root::B => self.is_refused(),
        }
        .map_err(|e| format!("after a reboot: {e}"))?;
        self.seen.insert(state);
        Ok(verdict)
    }

    fn update_again(&mut self) -> Result<(), String> {
        let (status, said) = self.rig.run_freely(View::Running, &UPDATE);
        if status != Some(0) {
            return Err(format!("the next update fails: {status:?}\n{said}"));
        }
        // Mounts of killed programs are for the engine to take away, with the layers below them.
        self.rig.unmount_new();
        let tree = self.rig.tree();
        if events(&tree)?.last().is_none_or(|e| e != "installed") {
            return Err(format!("the history says {:?}", events(&tree)));
        }
        let found = ending(&tree)?;
        if found != self.wanted {
            return Err(format!(
                "the next update ends elsewhere: {}\n{said}",
                difference(&self.wanted, &found)
            ));
        }
        self.again += 1;
        Ok(())
    }

    /// On trial, the only system that has proved itself must not be erased.
    fn is_refused(&mut self) -> Result<(), String> {
        let before = ending(&self.rig.tree())?;
        let (status, said) = self.rig.run_freely(View::Rebooted, &UPDATE);
        if status != Some(1) || !said.contains("[update-refused]") || !said.contains("on trial") {
            return Err(format!("an update on trial is not refused: {status:?}\n{said}"));
        }
        let after = ending(&self.rig.tree())?;
        if before != after {
            return Err(format!("an update on trial is refused, but {}", difference(&before, &after)));
        }
        self.refused += 1;
        Ok(())
    }

    pub fn told(&self, what: &str) {
        let Bench { points, again, refused, .. } = self;
        let time: Duration = self.began.elapsed();
        eprintln!(
            "{:?}: {what}: {points} kills; from what they left, {again} updates succeeded and {refused} were refused on trial; \
             {:.0} s",
            self.rig.dialect,
            time.as_secs_f64()
        );
    }
}

/// Some of many points, others at every hour; all with `COPAL_EVERY_KILL` in the environment.
pub struct Stride {
    every: usize,
    offset: usize,
}

impl Stride {
    pub fn new(every: usize) -> Stride {
        let every = if std::env::var_os("COPAL_EVERY_KILL").is_some() { 1 } else { every };
        let hours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600;
        Stride { every, offset: usize::try_from(hours).unwrap() % every }
    }

    pub fn has(&self, n: usize) -> bool {
        n % self.every == self.offset
    }
}

impl fmt::Display for Stride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.every {
            1 => write!(f, "every change"),
            every => write!(f, "each {every}th change (from {})", self.offset),
        }
    }
}

/// Those changes of an update that `stride` has.
fn changes(dialect: Dialect, stride: &Stride) {
    let mut bench = Bench::new(dialect, &[]);
    let start = bench.rig.pristine().clone();
    let (mut boots, mut bad) = (Vec::new(), Vec::new());
    for n in (1..).filter(|n| stride.has(*n)) {
        match bench.point(&start, &UPDATE, n) {
            Some(Ok(verdict)) => boots.push(verdict.boots),
            Some(Err(e)) => bad.push(e),
            None => break,
        }
    }
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), bench.points, bad.join("\n"));
    // One switch, and nothing else ever.
    let switches = boots.windows(2).filter(|w| w[0] != w[1]).count();
    assert_eq!((boots.first(), boots.last(), switches), (Some(&Root::A), Some(&Root::B), 1));
    bench.told(&format!("a whole update, {stride}"));
}

#[test]
fn killed_after_any_change_of_an_update_with_u_boot() {
    if can_run("killed_after_any_change_of_an_update_with_u_boot") {
        changes(Dialect::Uboot, &Stride::new(1));
    }
}

#[test]
fn killed_after_any_change_of_an_update_with_grub() {
    if can_run("killed_after_any_change_of_an_update_with_grub") {
        changes(Dialect::Grub, &Stride::new(1));
    }
}

#[test]
fn killed_after_some_changes_of_an_update_with_the_balena_bootloader() {
    if can_run("killed_after_some_changes_of_an_update_with_the_balena_bootloader") {
        changes(Dialect::Balena, &Stride::new(8));
    }
}

/// The second update's way back, from what a first one has left: until it erases the slot.
fn recoveries(dialect: Dialect) {
    let mut bench = Bench::new(dialect, &[]);
    let pristine = bench.rig.pristine().clone();
    let (whole, _) = bench.rig.run(View::Running, &UPDATE, None);
    let place = |end: &str| whole.changes.iter().position(|c| c.ends_with(end)).unwrap() + 1;
    let mut starts = vec![("installed", bench.updated.clone())];
    for (what, n) in [
        ("boot files are half new", place("/kernel.img")),
        ("boot files are new", place("/balenaos.fingerprint")),
    ] {
        bench.rig.restore(&pristine);
        assert_eq!(bench.rig.run(View::Running, &UPDATE, Some(n)).0.end, End::Killed);
        starts.push((what, bench.rig.tree()));
        bench.rig.reboot();
        starts.push((what, bench.rig.tree()));
    }
    let (rebooted, mut bad) = (Stride::new(6), Vec::new());
    for (what, start) in &starts {
        bench.rig.restore(start);
        let (traced, said) = bench.rig.run(View::Running, &UPDATE, None);
        assert_eq!(traced.end, End::Ended(Some(0)), "{what}: {said}");
        assert!(said.contains("it is undone first"), "{what}: {said}");
        // The room to unpack in comes after everything was set back and erased.
        let end = traced.changes.iter().position(|c| c.ends_with("/balena/tmp")).unwrap() + 1;
        for n in (1..=end).filter(|n| *what == "installed" || rebooted.has(*n)) {
            if let Some(Err(e)) = bench.point(start, &UPDATE, n) {
                bad.push(format!("{what}: {e}"));
            }
        }
    }
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), bench.points, bad.join("\n"));
    bench.told(&format!(
        "the way back before a second update, every change when installed, {rebooted} from {} other states",
        starts.len() - 1
    ));
}

#[test]
fn killed_while_an_earlier_update_is_undone_with_u_boot() {
    if can_run("killed_while_an_earlier_update_is_undone_with_u_boot") {
        recoveries(Dialect::Uboot);
    }
}

#[test]
fn killed_while_an_earlier_update_is_undone_with_grub() {
    if can_run("killed_while_an_earlier_update_is_undone_with_grub") {
        recoveries(Dialect::Grub);
    }
}
